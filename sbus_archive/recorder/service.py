"""The main loop of the recorder: reads the tap, writes rows, and passes finished files to the converter until a signal arrives."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from sbus.protocol.errors import SbusError
from sbus_archive.record.calls import CallRecognizer
from sbus_archive.record.layout import HOUR_NS, INDEX, hour_of, is_host
from sbus_archive.record.schema import Row, RowKind
from sbus_archive.record.shipped import ShippedList
from sbus_archive.recorder.converter import Converter, date_of_recorder
from sbus_archive.recorder.host_claims import HostClaims
from sbus_archive.recorder.log_messages import (
    BUS_AVAILABLE,
    BUS_UNAVAILABLE,
    DAMAGED,
    INDEX_DAMAGED,
    RECOVERED,
    STARTED,
    STOPPED,
    TAP_LOSS,
    TOO_MANY_SUBSCRIPTIONS,
    UNREAD,
    UNREADABLE,
)
from sbus_archive.recorder.recording import Clocks, Recording, SubscriptionSnapshot
from sbus_archive.recorder.retention import Retention, spool_limit, user_label
from sbus_archive.recorder.rows import PayloadPolicy, RowBuilder
from sbus_archive.recorder.segment_closing import Closing, SegmentCloser
from sbus_archive.recorder.tap import (
    ActiveSubscriptions,
    BusLost,
    BusRestored,
    LostPackets,
    RecorderTap,
    TapOutput,
    TapRefusedError,
)
from sbus_archive.recorder.wal import SET_ASIDE, SUFFIX, WalError, read_wal, set_aside, wal_files
from sbus_archive.storage.files import LockHeldError, RecordError, lock_file, make_folder, make_private
from sbus_archive.storage.ownership import HOSTS
from sbus_programs import wall_clock
from sbus_programs.config.recorder import RecorderSettings
from sbus_programs.systemd.log_records import Log
from sbus_programs.systemd.service_manager import ServiceManager, StatusReporter

TURN_PACKETS = 512
"""Maximum number of packets between checks for other work: a few milliseconds, a fortieth of a sync interval."""

DRAIN_SECONDS = 10.0
"""Maximum time to wait for the next packet while queued packets are read at exit: a bus that is stopped delays it no longer."""

REPORT_SECONDS = 60.0
"""Interval between log records of repeated losses."""

_NO_HOUR = -HOUR_NS

_DATE = "date"
"""The file of the spool in which the date survives a restart, see :mod:`sbus_programs.wall_clock`."""


class SpoolInUseError(SbusError):
    """Another recorder uses the same spool."""


class BadHostError(SbusError, ValueError):
    """The name of this host is not valid in an archive."""


def host_of(settings: RecorderSettings) -> str:
    """Return the name of this host in the archive.

    Raises:
        BadHostError: the name is not valid in an archive.
    """
    host = settings.host or socket.gethostname()
    if not is_host(host):
        raise BadHostError(f"invalid host name {host!r} for an archive: set host in recorder.toml, see sbus-recorder(8)")
    return host


class Recorder:
    """The recorder. Call :meth:`prepare`, then :meth:`run` until :meth:`stop`, and :meth:`close` in any case."""

    def __init__(
        self,
        settings: RecorderSettings,
        tap: RecorderTap,
        journal: Log,
        manager: ServiceManager,
        *,
        durable: Callable[[int], None] = lambda _seq: None,
        charged: Callable[[int], int] = int,
        clocks: Clocks | None = None,
    ) -> None:
        """Record the packets of *tap*. *durable* is called with the position of the last durable row. *charged* returns the user whose
        part of the quota a uid uses."""
        self.messages = 0
        """Number of messages received."""
        self._settings = settings
        self._tap = tap
        self._journal = journal
        self._manager = manager
        self._reporter = StatusReporter(manager)
        self._clocks = clocks or Clocks()
        self._durable = durable
        self._charged = charged
        self._host = host_of(settings)
        self._archive = Path(settings.archive)
        self._spool = Path(settings.spool)
        self._builder = RowBuilder(
            PayloadPolicy(settings.keep, settings.payloads), CallRecognizer.of_this_boot(self._host), tap.since, reported=tap.unit
        )
        self._subscriptions = SubscriptionSnapshot()
        self._snapshot_hour = _NO_HOUR
        self._lock = -1
        self._signals: int | None = None
        self._was_open = self._is_counted = self._is_stopping = False
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._converter: Converter | None = None
        self._recording: Recording | None = None
        self._closer: SegmentCloser | None = None
        self._tap_lost = self._unreported_loss = 0
        self._report_at = 0.0
        self._reported_unreadable = self._reported_forgotten = 0

    @property
    def rows(self) -> int:
        """Number of durable rows."""
        return self._recording.recorded if self._recording else 0

    @property
    def missing(self) -> int:
        """Number of missing rows: they could not be written, or the bus discarded them."""
        return self._tap_lost + (self._recording.lost if self._recording else 0)

    def status(self) -> str:
        """Return the status line for the service manager."""
        recording, converter, _ = self._prepared()
        words = f"{recording.recorded} rows, {self.missing} missing" + ", suspended" * recording.is_suspended
        if (largest := converter.largest) is not None:
            words += f"; most dedicated segments: {user_label(largest[0])}, {largest[1] >> 20} MiB"
        if converter.held:
            words += f"; expired but not shipped: {converter.held} segments"
        if converter.is_date_doubted:
            words += "; the date jumped, see the log"
        return words

    def prepare(self) -> None:
        """Lock the directories, recover the files of an earlier run, and open the tap.

        Raises:
            SpoolInUseError: another recorder uses the spool.
            HostTakenError: another recorder writes to the archive as this host.
            NoBus, TapRefusedError: the tap cannot be opened.
            RecordError: the archive cannot be read.
            ExposedFolderError: other users can enter a directory, and this user must not change it.
            OSError: a directory cannot be used.
        """
        # The directories contain messages of all users.
        make_private(self._archive, (INDEX, HOSTS, "date=*", ".spool"))
        make_private(self._spool, (f"*{SUFFIX}", f"*{SET_ASIDE}", ".lock", _DATE, f".{_DATE}.tmp"))
        self._take_lock()
        claims = HostClaims(self._archive, self._spool)
        claims.hold(self._host)
        settings = self._settings
        shipped = ShippedList(Path(settings.shipped)) if settings.shipped else None
        retention = Retention(self._archive, self._host, settings.disk_quota, settings.retention, shipped=shipped)
        damaged: list[RecordError] = []
        retention.load(damaged.append)
        if damaged:
            self._journal.record(INDEX_DAMAGED, count=len(damaged), reason=str(damaged[0]))
        clocks = wall_clock.Clocks(wall=self._clocks.wall_ns, boot=self._clocks.boot_ns)
        date = date_of_recorder(self._journal, retention, kept=self._spool / _DATE, clocks=clocks)
        converter = Converter(
            self._archive,
            retention,
            self._journal,
            hold=claims.hold,
            reserve_bytes=settings.rotate_bytes,
            clock=date,
            charged=self._charged,
            failed=self._wake_up,  # an idle bus does not
        )
        next_seq = max(retention.last_seq, self._recover(converter)) + 1
        self._converter = converter
        self._recording = Recording(
            settings,
            self._host,
            next_seq,
            self._journal,
            converter.submit,
            durable=self._durable,
            refusal=self._refusal,
            clocks=self._clocks,
        )
        self._closer = SegmentCloser(self._tap, self._recording, converter, self._clocks.monotonic)
        # Readers, such as the pipeline, find an archive without segments.
        make_folder(self._archive / INDEX)
        self._tap.open()
        self._was_open = True
        converter.start()
        self._record_restart("the recorder started", None)

    def run(self, seconds: float | None = None, messages: int | None = None, *, signals: int | None = None) -> None:
        """Record until :meth:`stop`, for *seconds*, or until *messages* were received.

        *signals* is the descriptor of the context in which signals call :meth:`stop`, :class:`sbus_programs.systemd.signals.EndingSignals`.

        Raises:
            TapRefusedError: a restarted bus refuses the tap.
            HostTakenError: another recorder has started as this host.
        """
        recording, converter, closer = self._prepared()
        self._is_counted, self._signals = messages is not None, signals
        self._journal.record(STARTED, address=self._tap.address, archive=str(self._archive), host=self._host)
        self._manager.notify("READY=1")
        end = None if seconds is None else self._clocks.monotonic() + seconds
        while not self._is_stopped():
            if (messages is not None and self.messages >= messages) or (end is not None and self._clocks.monotonic() >= end):
                return
            self._wait(recording, closer, end)
            for output in self._tap.receive(TURN_PACKETS):
                self._handle(output)
                if messages is not None and self.messages >= messages:
                    break  # the rest is more than requested
            recording.tick()
            closer.turn()
            self._report_losses()
            if converter.failure is not None:
                raise converter.failure
            self._reporter.turn(self.status)

    def close_segment(self) -> Closing:
        """Ask for the end of the current segment, and return the request. Other threads may call it between prepare() and close()."""
        _, _, closer = self._prepared()
        closing = closer.request()
        if not closer.has_stopped:
            self._wake_up()
        return closing

    def stop(self) -> None:
        """Make :meth:`run` return. Signal handlers may call it."""
        self._is_stopping = True
        self._wake_up()

    def _wake_up(self) -> None:
        """End the wait of the loop."""
        with contextlib.suppress(OSError):  # a full pipe wakes it too; a closed one has no loop
            os.write(self._woken, b"x")

    def close(self, timeout: float | None = None) -> None:
        """Stop: write what the bus has queued, and convert it within *timeout* seconds. The next start converts the rest."""
        self._manager.stopping()
        if self._was_open and not self._is_counted:
            self._drain()
        self._tap.close()
        if self._closer is not None:
            self._closer.stop()
        if self._recording is not None and self._converter is not None:
            self._report_losses(at_once=True)
            self._recording.close()
            self._converter.close(timeout)
        if self._recording is not None and self._was_open:
            self._journal.record(STOPPED, rows=self._recording.recorded, files=self._recording.files, lost=self.missing)
        for fd in (self._wake, self._woken, self._lock):
            if fd >= 0:
                os.close(fd)
        self._wake = self._woken = self._lock = -1

    def _drain(self) -> None:
        """Read what the bus has queued, up to its reply to a last ping. If the bus stops sending, an unknown number of rows is missing."""
        self._tap.request_end()
        with contextlib.suppress(TapRefusedError):
            while (fd := self._tap.fileno()) is not None and not self._tap.has_ended:
                readable, _, _ = select.select([fd], [], [], DRAIN_SECONDS)
                if not readable:
                    self._add(Row(self._clocks.wall_ns(), 0, RowKind.TAP_LOSS, reason="the bus did not send what it had queued"))
                    self._journal.record(UNREAD, seconds=f"{DRAIN_SECONDS:g}")
                    return
                for output in self._tap.receive(TURN_PACKETS):
                    self._handle(output)

    def _prepared(self) -> tuple[Recording, Converter, SegmentCloser]:
        """Return the parts that :meth:`prepare` made."""
        if self._recording is None or self._converter is None or self._closer is None:
            raise RuntimeError("call prepare() first")
        return self._recording, self._converter, self._closer

    def _is_stopped(self) -> bool:
        """Return whether :meth:`stop` was called."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 64)
        return self._is_stopping

    def _wait(self, recording: Recording, closer: SegmentCloser, end: float | None) -> None:
        """Wait for a packet, or until something is due."""
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        for fd in (self._tap.fileno(), self._signals):
            if fd is not None:
                poller.register(fd, select.POLLIN)
        due = [each for each in (recording.due, closer.due, self._tap.due, self._reporter.due, end) if each is not None]
        timeout = max(0.0, min(due) - self._clocks.monotonic()) * 1_000 if due else None
        # Rounded up: a wait that ends just before the due time would cause a busy loop.
        poller.poll(None if timeout is None else int(timeout) + 1)

    def _handle(self, output: TapOutput) -> None:
        """Record one item of the tap."""
        now = self._clocks.wall_ns()
        match output:
            case bytes():
                row = self._builder.row(output)
                if row is not None and not (row.kind == RowKind.LOSS and row.conn == self._tap.own_id):
                    self.messages += row.kind == RowKind.MESSAGE
                    self._add(row)
            case ActiveSubscriptions(subscriptions):
                self._record_subscriptions(subscriptions, now)
            case LostPackets(count):
                self._unreported_loss += count or 0
                self._tap_lost += count or 0
                self._add(Row(now, 0, RowKind.TAP_LOSS, lost=count, reason=None if count else "the bus does not know how many rows"))
            case BusLost(reason):
                self._journal.record(BUS_UNAVAILABLE, reason=reason)
            case BusRestored(duration_ns):
                self._journal.record(BUS_AVAILABLE, seconds=f"{duration_ns / 1e9:.3f}")
                self._builder.forget_peers()
                self._subscriptions.clear()
                self._record_restart("the recorder lost its connection to the bus", duration_ns)

    def _add(self, row: Row) -> None:
        """Record *row*. The first row of an hour follows the active subscriptions."""
        recording, _, _ = self._prepared()
        if recording.is_suspended:
            # While recording is suspended, rows are lost. The subscriptions are repeated after the gap.
            self._snapshot_hour = _NO_HOUR
        elif (hour := hour_of(row.ts)) > self._snapshot_hour or recording.hour < self._snapshot_hour - HOUR_NS:
            self._snapshot_hour = hour
            for subscription in self._subscriptions.rows(row.ts):
                recording.add(subscription)
        self._subscriptions.note(row)
        recording.add(row)

    def _record_subscriptions(self, subscriptions: Iterable[dict[str, object]], now: int) -> None:
        """Record those *subscriptions* that are not known yet."""
        for fact in subscriptions:
            row = self._builder.subscription_row(fact, now)
            if row is not None and not self._subscriptions.knows(row):
                self._add(row)

    def _record_restart(self, reason: str, duration_ns: int | None) -> None:
        """Record that the connection is new."""
        self._add(Row(self._clocks.wall_ns(), 0, RowKind.RESTART, reason=reason, duration=duration_ns))

    def _report_losses(self, *, at_once: bool = False) -> None:
        """Log new losses and unreadable packets, at most every REPORT_SECONDS."""
        now = self._clocks.monotonic()
        if now < self._report_at and not at_once:
            return
        if self._unreported_loss:
            self._journal.record(TAP_LOSS, lost=self._unreported_loss)
            self._unreported_loss = 0
            self._report_at = now + REPORT_SECONDS
        if self._builder.unreadable > self._reported_unreadable:
            self._reported_unreadable = self._builder.unreadable
            self._journal.record(UNREADABLE, count=self._reported_unreadable)
            self._report_at = now + REPORT_SECONDS
        if self._subscriptions.forgotten > self._reported_forgotten:
            self._reported_forgotten = self._subscriptions.forgotten
            self._journal.record(TOO_MANY_SUBSCRIPTIONS, count=self._reported_forgotten)
            self._report_at = now + REPORT_SECONDS

    def _take_lock(self) -> None:
        """Lock the spool for this process. Raises SpoolInUseError, OSError."""
        try:
            self._lock = lock_file(self._spool / ".lock")
        except LockHeldError as error:
            raise SpoolInUseError(f"{self._spool}: in use by another recorder, process {error.holder}") from None

    def _recover(self, converter: Converter) -> int:
        """Pass on the files of an earlier run; return the highest position in them, 0 if there is none."""
        last = rows = torn = 0
        expected: tuple[str, int] | None = None
        """Host, empty if unknown, and first position of the next file, if nothing is missing before it."""
        for path in wal_files(self._spool):
            self._manager.extend_timeout()
            try:
                content = read_wal(path)
            except WalError as error:
                # Renamed now: a file of this run can get the same name.
                self._journal.record(DAMAGED, file=str(path), reason=f"{error.reason}; renamed to {set_aside(path).name}")
                expected = expected or ("", int(path.stem))
                continue
            missing = content.first_seq - expected[1] if expected and expected[0] in {"", content.host} else 0
            last, rows, torn = max(last, content.last_seq), rows + content.rows, torn + content.torn_bytes
            if content.rows:
                converter.submit(path, max(0, missing))
                expected = content.host, content.last_seq + 1
            else:
                expected = expected or (content.host, content.first_seq)
                path.unlink()
        if rows:
            self._journal.record(RECOVERED, rows=rows, torn=torn)
        return last

    def _refusal(self, wal_bytes: int) -> str | None:
        """Return the reason if nothing more may be written: the queued files use the write-ahead log's part of the quota."""
        _, converter, _ = self._prepared()
        if converter.waiting_bytes + wal_bytes <= spool_limit(self._settings.disk_quota, self._settings.rotate_bytes):
            return None
        return "the write-ahead log has reached its part of disk_quota, because segments are written too slowly"
