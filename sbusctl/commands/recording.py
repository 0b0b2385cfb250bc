"""``sbusctl record`` writes the traffic of the bus into an archive, and ``sbusctl replay`` publishes it again."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import typer

from sbus import PayloadTooLarge, RemoteRefusal
from sbus.bus_socket import open_socket, parse_target
from sbus.protocol.errors import SbusError
from sbus_archive.optional_packages import how_to_install, use_local_packages
from sbusctl.errors import print_error
from sbusctl.formatting import human_plural
from sbusctl.output import JsonStyle, write_json, write_lines
from sbusctl.settings import MAX_SECONDS, settings_of

if TYPE_CHECKING:
    from sbus_archive.recorder.replay import RecordedMessage, Replay
    from sbus_programs.systemd.log_records import Fact, LogMessage

DEFAULT_ARCHIVE = Path("sbus-record")

CONNECT_SECONDS = 10.0
"""Time limit for connecting; systemd may have to start the bus first."""

SPOOL = ".spool"
"""The write-ahead log, in the archive so that there is a single directory. Readers ignore names with a leading dot."""

_FOR_EVER = 36_525 * 86_400.0
_UNBOUNDED = 1 << 50

MAX_SPEED = 1_000_000
"""A day in a tenth of a second; 0 has no pauses at all."""

PROGRESS_SECONDS = 0.5
"""Interval between updates of the progress."""


class WarningPrinter:
    """Prints warnings and errors of the recorder."""

    def record(self, message: LogMessage, /, **facts: Fact) -> None:
        """Print *message* if it is a warning or worse."""
        from sbus_programs.systemd.log_records import Priority  # noqa: PLC0415 - most calls of sbusctl do without

        if message.priority <= Priority.WARNING:
            print_error(message.text(facts))


def record_command(
    context: typer.Context,
    *,
    archive: Annotated[Path, typer.Option("--archive", metavar="DIR", help="Directory of the archive.")] = DEFAULT_ARCHIVE,
    pattern: Annotated[
        str, typer.Option("--pattern", metavar="PATTERN", help="Record only messages with keys that match this pattern.")
    ] = "",
    seconds: Annotated[
        float | None, typer.Option("--timeout", min=0, max=MAX_SECONDS, metavar="SECONDS", help="Exit after this time.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="COUNT", help="Exit after this many messages.")] = None,
    keep: Annotated[
        str, typer.Option("--keep", metavar="SIZE", help="Bytes of each payload to record: whole, none, or a size such as 1KiB.")
    ] = "whole",
) -> None:
    """Record the traffic of the bus into an archive.

    Press Ctrl-C to stop. Payloads of private messages are not recorded.
    """
    require_pyarrow()
    from sbus_archive.recorder.service import Recorder  # noqa: PLC0415
    from sbus_archive.recorder.tap import RecorderTap  # noqa: PLC0415
    from sbus_programs.config.recorder import RecorderSettings  # noqa: PLC0415 - behind the check
    from sbus_programs.systemd.service_manager import ServiceManager  # noqa: PLC0415
    from sbus_programs.systemd.signals import EndingSignals  # noqa: PLC0415

    folder = archive.absolute()
    settings = settings_of(context)
    wanted = RecorderSettings(
        archive=str(folder),
        spool=str(folder / SPOOL),
        pattern=pattern,
        keep=_keep(keep),
        disk_quota=_UNBOUNDED,
        retention=_FOR_EVER,
    )
    recorder = Recorder(
        wanted, RecorderTap(settings.bus_address(), pattern.encode("utf-8", "surrogateescape")), WarningPrinter(), ServiceManager()
    )
    # Before a directory is created: that there is no bus is the most likely error.
    open_socket(parse_target(settings.bus_address(), reconnect=True), CONNECT_SECONDS).close()
    with EndingSignals(recorder.stop) as signals:
        try:
            recorder.prepare()
            recorder.run(seconds, count, signals=signals.fileno())
        finally:
            recorder.close()
    counts = {"archive": str(folder), "rows": recorder.rows, "messages": recorder.messages, "missing": recorder.missing}
    if settings.json is not JsonStyle.OFF:
        write_json(counts, settings.json)
    else:
        others = human_plural(recorder.rows - recorder.messages, "other row")
        missing = f"; {human_plural(recorder.missing, 'row')} missing" if recorder.missing else ""
        write_lines([f"recorded {human_plural(recorder.messages, 'message')} and {others} into {folder}{missing}"])


def _keep(value: str) -> int | Literal["whole", "none"]:
    """Return the part of payloads to record. Raises BadParameter if *value* is invalid."""
    from sbus_programs.config.recorder import Keep  # noqa: PLC0415 - most calls of sbusctl do without

    try:
        return Keep().parse(int(value) if value.isascii() and value.isdigit() and len(value) < 10 else value)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--keep") from None


class NoPyarrowError(SbusError):
    """pyarrow, which reads and writes records, is not installed."""


class NothingRecordedError(SbusError):
    """There is nothing to publish."""


class RefusedError(SbusError):
    """The bus refused some of the messages."""


class ReplayTarget(Protocol):
    """The part of a bus to which a record is replayed."""

    def publish(self, key: bytes, payload: bytes) -> None:
        """Publish a message."""

    def ping(self) -> float:
        """Wait until the bus has routed everything that was sent."""


class ReplayPublisher:
    """Publishes and counts messages."""

    def __init__(self, bus: ReplayTarget) -> None:
        self.published = 0
        self.too_large = 0
        """Number of messages that are larger than this connection can send."""
        self._bus = bus

    def publish(self, messages: Iterable[RecordedMessage], progress: Callable[[int, int], None]) -> None:
        """Publish all *messages*. *progress* is called with their number, and the time of the last, in nanoseconds since 1970."""
        for message in messages:
            try:
                self._bus.publish(message.key, message.payload)
            except PayloadTooLarge:
                self.too_large += 1
                continue
            self.published += 1
            progress(self.published, message.ts)

    def settle(self) -> str | None:
        """Wait until the bus has routed everything; return the first refusal, None if there was none."""
        first: str | None = None
        while True:
            try:
                self._bus.ping()
            except RemoteRefusal as refusal:
                first = first or refusal.said
            else:
                return first


def replay_command(
    context: typer.Context,
    *,
    archive: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="Directory of the archive.")],
    speed: Annotated[
        float,
        typer.Option(
            "--speed",
            min=0,
            max=MAX_SPEED,
            metavar="FACTOR",
            help="Speed: 1 is the recorded speed, 2 is twice as fast, 0 is without pauses.",
        ),
    ] = 1.0,
    key: Annotated[str, typer.Option("--key", metavar="PATTERN", help="Publish only messages with keys that match this pattern.")] = "",
    host: Annotated[str | None, typer.Option("--host", metavar="HOST", help="Publish only messages that this host recorded.")] = None,
) -> None:
    """Publish the messages of an archive again.

    Messages are published in chronological order. Messages to reserved keys are skipped.
    """
    require_pyarrow()
    from sbus_archive.record.segments import RecordReader  # noqa: PLC0415 - behind the check
    from sbus_archive.recorder.replay import Replay, paced  # noqa: PLC0415

    settings = settings_of(context)
    replay = Replay(RecordReader(archive), os.fsencode(key), host)
    entries = list(replay.entries())
    if not entries:
        of_host = "" if host is None else f" of host {host}"
        raise NothingRecordedError(f"cannot replay {archive}: the archive contains no records{of_host}")
    total = sum(entry.kinds.get("message", 0) for entry in entries)
    with settings.connect() as bus, contextlib.nullcontext() if speed else bus.coalesce():
        publication = ReplayPublisher(bus)
        refusal: str | None = None
        try:
            publication.publish(paced(replay, speed, time.monotonic, time.sleep), _progress(total))
        finally:
            _end_progress()
            refusal = publication.settle()
            refused = bus.statistics.refusals
            _summarize(replay, publication, refused, settings.json)
    if refusal is not None:
        raise RefusedError(f"the bus refused {human_plural(refused, 'message')}: {refusal}")


def require_pyarrow(extra: str = "recorder") -> None:
    """Add pyarrow to the search path. Raises NoPyarrowError if it is not installed, with the command that installs *extra*."""
    use_local_packages()
    try:
        import pyarrow  # noqa: F401, PLC0415 - only to say in one line that it is missing
    except ModuleNotFoundError:
        raise NoPyarrowError(f"cannot read or write records: pyarrow is not installed; install it with: {how_to_install(extra)}") from None


def _summarize(replay: Replay, publication: ReplayPublisher, refused: int, json: JsonStyle) -> None:
    """Print the numbers of published and skipped messages, with the reasons."""
    skipped = replay.skipped
    counts = {
        "published": publication.published - refused,
        "refused": refused,
        "too_large": publication.too_large,
        "reserved": skipped.reserved,
        "cut": skipped.cut,
        "left_out": skipped.left_out,
        "missing": replay.missing,
    }
    if json is not JsonStyle.OFF:
        write_json(counts, json)
        return
    words = {
        "refused": "refused by the bus",
        "too_large": "too large for this connection",
        "reserved": "reserved key (private, or for a single connection)",
        "cut": "payload recorded in part",
        "left_out": "payload not recorded",
        "missing": "missing from the archive",
    }
    lines = [f"published {human_plural(counts['published'], 'message')}"]
    lines += [f"not published: {counts[name]} {why}" for name, why in words.items() if counts[name]]
    write_lines(lines)


def _progress(total: int) -> Callable[[int, int], None]:
    """Return a function that shows the progress if standard error is a terminal."""
    if not sys.stderr.isatty():
        return lambda _published, _ts: None
    next_at = 0.0

    def tell(published: int, ts: int) -> None:
        nonlocal next_at
        now = time.monotonic()
        if now >= next_at:
            next_at = now + PROGRESS_SECONDS
            moment = datetime.datetime.fromtimestamp(ts // 10**9, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
            sys.stderr.write(f"\r\x1b[K{published} of {total} messages ({100 * published // total} %), {moment} UTC")
            sys.stderr.flush()

    return tell


def _end_progress() -> None:
    """Clear the progress line."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
