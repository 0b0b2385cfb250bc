"""``sbusctl record``: records the traffic of the bus."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sbusd.client.connection import open_socket, parse_target
from sbusd.ctl.commands.replay import require_pyarrow
from sbusd.ctl.output import JsonStyle, print_error, write_json, write_lines
from sbusd.ctl.quantities import human_plural
from sbusd.ctl.settings import settings_of

if TYPE_CHECKING:
    from sbusd.systemd.log_record import Fact, LogMessage

DEFAULT_ARCHIVE = Path("sbus-record")

CONNECT_SECONDS = 10.0
"""Time limit for connecting; systemd may have to start the bus first."""

SPOOL = ".spool"
"""The write-ahead log, in the archive so that there is a single directory. Readers ignore names with a leading dot."""

_FOR_EVER = 36_525 * 86_400.0
_UNBOUNDED = 1 << 50


class WarningPrinter:
    """Prints warnings and errors of the recorder."""

    def record(self, message: LogMessage, /, **facts: Fact) -> None:
        """Print *message* if it is a warning or worse."""
        from sbusd.systemd.log_record import Priority  # noqa: PLC0415 - most calls of sbusctl do without

        if message.priority <= Priority.WARNING:
            print_error(message.text(facts))


def command(
    context: typer.Context,
    *,
    archive: Annotated[Path, typer.Option("--archive", metavar="DIR", help="Directory of the archive.")] = DEFAULT_ARCHIVE,
    pattern: Annotated[str, typer.Option("--pattern", metavar="PATTERN", help="Record only keys that match this pattern.")] = "",
    seconds: Annotated[float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="Exit after this time.")] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="COUNT", help="Exit after this many messages.")] = None,
    keep: Annotated[
        str, typer.Option("--keep", metavar="SIZE", help="Bytes of each payload to record: whole, none, or a size such as 1KiB.")
    ] = "whole",
) -> None:
    """Record the traffic of the bus into an archive.

    Press Ctrl-C to stop. Payloads of private messages are not recorded.
    """
    require_pyarrow()
    from sbusd.config.recorder import RecorderSettings  # noqa: PLC0415 - behind the check
    from sbusd.recorder.service import Recorder  # noqa: PLC0415
    from sbusd.recorder.tap import RecorderTap  # noqa: PLC0415
    from sbusd.systemd.service_manager import ServiceManager  # noqa: PLC0415

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
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: recorder.stop())
    try:
        recorder.prepare()
        recorder.run(seconds, count)
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
    from sbusd.config.recorder import Keep  # noqa: PLC0415 - most calls of sbusctl do without

    try:
        return Keep().parse(int(value) if value.isascii() and value.isdigit() and len(value) < 10 else value)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--keep") from None
