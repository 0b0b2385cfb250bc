"""The recorder at work: what the tap tells becomes rows, rows go to the disk, finished files become segments, until a signal ends it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from sbusd.archive.private_files import make_private
from sbusd.archive.record.index import last_position
from sbusd.archive.record.kinds import Kind
from sbusd.archive.record.layout import HOUR_NS, INDEX, hour_of, is_host
from sbusd.archive.record.schema import Row
from sbusd.config.recorder import RecorderSettings
from sbusd.protocol.errors import SbusError
from sbusd.recorder.calls import CallBook
from sbusd.recorder.converter import Converter
from sbusd.recorder.log_messages import BUS_AWAY, BUS_BACK, CROWDED, DAMAGED, RECOVERED, STARTED, STOPPED, TAP_LOSS, UNREADABLE
from sbusd.recorder.payloads import PayloadPolicy
from sbusd.recorder.recording import Clocks, Recording
from sbusd.recorder.retention import Retention
from sbusd.recorder.rows import RowMaker
from sbusd.recorder.shares import name_of, spool_limit
from sbusd.recorder.status import StatusReporter
from sbusd.recorder.subscription_snapshot import Standing as StandingBook
from sbusd.recorder.tap import Away, Back, Heard, Missed, Standing, Tap, TapRefusedError
from sbusd.recorder.wal import SET_ASIDE, SUFFIX, WalError, read_wal, set_aside, wal_files
from sbusd.systemd.service_log import Log
from sbusd.systemd.service_manager import ServiceManager

TURN_PACKETS = 512
"""Packets taken before what is due is looked at: some milliseconds of work, a fortieth of a sync interval."""

DRAIN_SECONDS = 2.0
"""How long the end goes on to listen: enough for all that a bus queues, and less than a person waits for."""

TELL_SECONDS = 60.0
"""How often what is lost again and again is told."""

_NOT_THIS_HOUR = -HOUR_NS


class SpoolInUseError(SbusError):
    """Another recorder writes into the same spool."""


class BadHostError(SbusError, ValueError):
    """This host's name cannot stand in an archive."""


def host_of(settings: RecorderSettings) -> str:
    """Return the name of this host in the archive.

    Raises:
        BadHostError: it has none that can stand there.
    """
    host = settings.host or socket.gethostname()
    if not is_host(host):
        raise BadHostError(f"invalid host name {host!r} for an archive: set host in recorder.toml, see sbus-recorder(8)")
    return host


class Recorder:
    """One recorder. :meth:`prepare` it, let it :meth:`run` until :meth:`stop`, and :meth:`close` it whatever happens."""

    def __init__(
        self,
        settings: RecorderSettings,
        tap: Tap,
        journal: Log,
        manager: ServiceManager,
        *,
        durable: Callable[[int], None] = lambda _seq: None,
        clocks: Clocks | None = None,
    ) -> None:
        """Record what *tap* tells. *durable* is given the position up to which rows are on the disk."""
        self.messages = 0
        """Messages that were heard."""
        self._settings = settings
        self._tap = tap
        self._journal = journal
        self._manager = manager
        self._reporter = StatusReporter(manager)
        self._clocks = clocks or Clocks()
        self._durable = durable
        self._host = host_of(settings)
        self._archive = Path(settings.archive)
        self._spool = Path(settings.spool)
        self._maker = RowMaker(PayloadPolicy(settings.keep, settings.payloads), CallBook(self._host, _boot_id()), tap.since)
        self._standing = StandingBook()
        self._told_hour = _NOT_THIS_HOUR
        self._lock = -1
        self._listened = self._is_counted = False
        self._wake, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._converter: Converter | None = None
        self._recording: Recording | None = None
        self._tap_lost = self._untold_loss = 0
        self._tell_at = 0.0
        self._told_unreadable = self._told_forgotten = 0

    @property
    def rows(self) -> int:
        """Rows that are on the disk."""
        return self._recording.recorded if self._recording else 0

    @property
    def missing(self) -> int:
        """Rows that are known to be missing: nothing could be written, or the bus discarded them."""
        return self._tap_lost + (self._recording.lost if self._recording else 0)

    def status(self) -> str:
        """Return how it goes, in a line: for the service manager."""
        recording, converter = self._parts()
        words = f"{recording.recorded} rows, {self.missing} missing" + ", suspended" * recording.is_suspended
        if (largest := converter.largest) is not None:
            words += f"; most dedicated segments: {name_of(largest[0])}, {largest[1] >> 20} MiB"
        return words

    def prepare(self) -> None:
        """Take the folders, finish what an earlier run left, and begin to listen.

        Raises:
            SpoolInUseError: another recorder has them.
            NoBus, TapRefusedError: there is nothing to listen to.
            RecordError: the index is damaged.
            ExposedFolderError: others can enter a folder, and it is not ours to close it.
            OSError: a folder cannot be used.
        """
        # Everybody's messages are in them.
        make_private(self._archive, (INDEX, "date=*", ".spool"))
        make_private(self._spool, (f"*{SUFFIX}", f"*{SET_ASIDE}", ".lock"))
        self._take_lock()
        settings = self._settings
        retention = Retention(self._archive, self._host, settings.disk_quota, settings.retention)
        retention.load()
        converter = Converter(self._archive, retention, self._journal, reserve_bytes=settings.rotate_bytes, wall_ns=self._clocks.wall_ns)
        next_seq = max(last_position(self._archive, self._host), self._recover(converter)) + 1
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
        self._tap.open()
        self._listened = True
        converter.start()
        self._record_restart("the recorder started", None)

    def run(self, seconds: float | None = None, messages: int | None = None) -> None:
        """Record until :meth:`stop`, or for *seconds*, or until so many *messages* were heard.

        Raises:
            TapRefusedError: a new bus does not let this user listen.
        """
        recording, converter = self._parts()
        self._is_counted = messages is not None
        self._journal.record(STARTED, address=self._tap.address, archive=str(self._archive), host=self._host)
        self._manager.notify("READY=1")
        end = None if seconds is None else self._clocks.monotonic() + seconds
        while not self._is_stopped():
            if (messages is not None and self.messages >= messages) or (end is not None and self._clocks.monotonic() >= end):
                return
            self._wait(recording, end)
            for heard in self._tap.hear(TURN_PACKETS):
                self._take(heard)
                if messages is not None and self.messages >= messages:
                    break  # what else there is is more than was asked for
            recording.tick()
            self._tell()
            if converter.failure is not None:
                raise converter.failure
            self._reporter.turn(self.status)

    def stop(self) -> None:
        """Let :meth:`run` return; may be called by a signal's handler."""
        try:
            os.write(self._woken, b"x")
        except BlockingIOError:
            return

    def close(self, timeout: float | None = None) -> None:
        """End: what the bus has told is written, and made segments of within *timeout* seconds; the rest is for the next start."""
        self._manager.stopping()
        if self._listened and not self._is_counted:
            self._hear_the_rest()
        self._tap.close()
        if self._recording is not None and self._converter is not None:
            self._tell(at_once=True)
            self._recording.close()
            self._converter.close(timeout)
        if self._recording is not None and self._listened:
            self._journal.record(STOPPED, rows=self._recording.recorded, files=self._recording.files, lost=self.missing)
        for fd in (self._wake, self._woken, self._lock):
            if fd >= 0:
                os.close(fd)
        self._wake = self._woken = self._lock = -1

    def _hear_the_rest(self) -> None:
        """Take what the bus has told already, and still queues: up to its answer to a last question, but for a bounded time."""
        end = self._clocks.monotonic() + DRAIN_SECONDS
        self._tap.ask_for_end()
        with contextlib.suppress(TapRefusedError):
            while (fd := self._tap.fileno()) is not None and not self._tap.has_ended:
                left = end - self._clocks.monotonic()
                if left <= 0:
                    return
                select.select([fd], [], [], left)
                for heard in self._tap.hear(TURN_PACKETS):
                    self._take(heard)

    def _parts(self) -> tuple[Recording, Converter]:
        """Return what :meth:`prepare` made."""
        if self._recording is None or self._converter is None:
            raise RuntimeError("call prepare() first")
        return self._recording, self._converter

    def _is_stopped(self) -> bool:
        """Return whether the end has been asked for."""
        try:
            return bool(os.read(self._wake, 1))
        except BlockingIOError:
            return False

    def _wait(self, recording: Recording, end: float | None) -> None:
        """Wait until there is something to hear, or something is due."""
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        fd = self._tap.fileno()
        if fd is not None:
            poller.register(fd, select.POLLIN)
        due = [each for each in (recording.due, self._tap.due, self._reporter.due, end) if each is not None]
        timeout = max(0.0, min(due) - self._clocks.monotonic()) * 1_000 if due else None
        # Rounded up: a wait that ends just before the time would be followed by another of no length.
        poller.poll(None if timeout is None else int(timeout) + 1)

    def _take(self, heard: Heard) -> None:
        """Put one thing that was heard into the record."""
        now = self._clocks.wall_ns()
        match heard:
            case bytes():
                row = self._maker.row(heard)
                if row is not None and not (row.kind == Kind.LOSS and row.conn == self._tap.own_id):
                    self.messages += row.kind == Kind.MESSAGE
                    self._add(row)
            case Standing(subscriptions):
                self._take_standing(subscriptions, now)
            case Missed(count):
                self._untold_loss += count or 0
                self._tap_lost += count or 0
                self._add(Row(now, 0, Kind.TAP_LOSS, lost=count, reason=None if count else "the bus does not know how many rows"))
            case Away(reason):
                self._journal.record(BUS_AWAY, reason=reason)
            case Back(duration_ns):
                self._journal.record(BUS_BACK, seconds=f"{duration_ns / 1e9:.3f}")
                self._maker.forget_peers()
                self._standing.clear()
                self._record_restart("the recorder lost its connection to the bus", duration_ns)

    def _add(self, row: Row) -> None:
        """Record *row*, behind the subscriptions that stand if its hour begins with it."""
        recording, _ = self._parts()
        if recording.is_suspended:
            # What is told now is lost; after the gap it is told anew.
            self._told_hour = _NOT_THIS_HOUR
        elif (hour := hour_of(row.ts)) > self._told_hour:
            self._told_hour = hour
            for standing in self._standing.rows(row.ts):
                recording.add(standing)
        self._standing.note(row)
        recording.add(row)

    def _take_standing(self, subscriptions: Iterable[dict[str, object]], now: int) -> None:
        """Record those *subscriptions* that are not known yet."""
        for fact in subscriptions:
            row = self._maker.standing(fact, now)
            if row is not None and not self._standing.knows(row):
                self._add(row)

    def _record_restart(self, reason: str, duration_ns: int | None) -> None:
        """Record that the connection is new."""
        self._add(Row(self._clocks.wall_ns(), 0, Kind.RESTART, reason=reason, duration=duration_ns))

    def _tell(self, *, at_once: bool = False) -> None:
        """Tell what was lost, or could not be read, since it was told last; not too often."""
        now = self._clocks.monotonic()
        if now < self._tell_at and not at_once:
            return
        if self._untold_loss:
            self._journal.record(TAP_LOSS, lost=self._untold_loss)
            self._untold_loss = 0
            self._tell_at = now + TELL_SECONDS
        if self._maker.unreadable > self._told_unreadable:
            self._told_unreadable = self._maker.unreadable
            self._journal.record(UNREADABLE, count=self._told_unreadable)
            self._tell_at = now + TELL_SECONDS
        if self._standing.forgotten > self._told_forgotten:
            self._told_forgotten = self._standing.forgotten
            self._journal.record(CROWDED, count=self._told_forgotten)
            self._tell_at = now + TELL_SECONDS

    def _take_lock(self) -> None:
        """Take the spool for this process. Raises SpoolInUseError."""
        self._lock = os.open(self._spool / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._lock, 32).decode("ascii", "replace").strip()
            raise SpoolInUseError(f"{self._spool}: in use by another recorder, process {holder or 'unknown'}") from None
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"{os.getpid()}\n".encode())

    def _recover(self, converter: Converter) -> int:
        """Hand on the files that an earlier run left; return the greatest position in them, 0 if there is none."""
        last = rows = torn = 0
        for path in wal_files(self._spool):
            self._manager.extend_timeout()
            try:
                content = read_wal(path)
            except WalError as error:
                # At once: a file of this run may get the same name.
                self._journal.record(DAMAGED, file=str(path), reason=f"{error.reason}; renamed to {set_aside(path).name}")
                continue
            last, rows, torn = max(last, content.last_seq), rows + content.rows, torn + content.torn_bytes
            if content.rows:
                converter.submit(path)
            else:
                path.unlink()
        if rows:
            self._journal.record(RECOVERED, rows=rows, torn=torn)
        return last

    def _refusal(self, wal_bytes: int) -> str | None:
        """Return why nothing more may be written: what waits for the archive has used up the write-ahead's part of the quota."""
        _, converter = self._parts()
        if converter.waiting_bytes + wal_bytes <= spool_limit(self._settings.disk_quota, self._settings.rotate_bytes):
            return None
        return "the write-ahead log has reached its part of disk_quota, because segments are written too slowly"


def _boot_id() -> str:
    """Return the id of this boot, random(4); empty where there is none, as in some containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
