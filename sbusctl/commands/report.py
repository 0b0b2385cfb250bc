"""``sbusctl report``: writes the tables of the pipeline as an HTML page."""

from __future__ import annotations

import os
import pwd
import socket
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbus.protocol.errors import SbusError
from sbus_archive.optional_packages import how_to_install
from sbus_archive.storage.location import ArchivePath, LocationError, parse_tables_location
from sbusctl.commands.recording import require_pyarrow
from sbusctl.fresh_tables import ARCHIVE, TABLES, refresh_tables
from sbusctl.output import JsonStyle, flush, visible, write_bytes, write_json, write_lines
from sbusctl.settings import forbid_bus, forbid_json, settings_of

if TYPE_CHECKING:
    from sbus_archive.report.coverage import Earlier
    from sbus_archive.report.digest import Digest
    from sbus_archive.tables.hours import Hour
    from sbus_archive.tables.storage import TableSnapshot

FILE = Path("sbus-report.html")
_STDOUT = Path("-")
_HOURS_MOST = 24 * 3660


class _ReportError(SbusError):
    """The report cannot be written."""


def report_command(
    context: typer.Context,
    *,
    tables: Annotated[
        str, typer.Option("--tables", metavar="DIR", help="Directory of the tables that sbus-pipeline wrote, or s3://BUCKET/PREFIX.")
    ] = str(TABLES),
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File to write; - is standard output.")] = FILE,
    hours: Annotated[int | None, typer.Option(metavar="COUNT", min=1, max=_HOURS_MOST, help="Include only the last COUNT hours.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the web browser.")] = False,
    now: Annotated[bool, typer.Option("--now", help="First bring the tables up to date, with everything recorded until now.")] = False,
    archive: Annotated[
        Path | None,
        typer.Option("--archive", metavar="DIR", readable=False, help=f"With --now: directory of the archive. Default: {ARCHIVE}."),
    ] = None,
) -> None:
    """Write an HTML page with charts of the recorded traffic.

    The data are the tables of sbus-pipeline(8). The page is a single file and needs no network.
    """
    if show and output == _STDOUT:
        raise typer.BadParameter("--open requires a file; omit -o -")
    if archive is not None and not now:
        raise typer.BadParameter("--archive requires --now: without it, the page shows the tables as they are")
    if output == _STDOUT:
        forbid_json(context, "report -o -")
    if not now:
        forbid_bus(context, "report without --now")
    try:
        location = parse_tables_location(tables)
    except LocationError as error:
        raise typer.BadParameter(str(error), param_hint="--tables") from None
    require_pyarrow("pipeline")
    _require_deltalake()
    from sbus_archive.report.rendering import require_plotly  # noqa: PLC0415 - behind the check

    # Before the minutes in which the tables are computed.
    require_plotly()
    if now:
        refresh_tables(
            settings_of(context), (archive or ARCHIVE).absolute(), location.absolute() if isinstance(location, Path) else location
        )
    digest, page = _make(location, hours)
    if output == _STDOUT:
        write_bytes(page.encode("utf-8"))
        flush()
        return
    _write(output, page)
    from sbus_archive.report.rendering import summary_of  # noqa: PLC0415 - pyarrow is an optional package, and slow to import

    style = settings_of(context).json
    if style is JsonStyle.OFF:
        write_lines([visible(line) for line in (*summary_of(digest), f"written to {output}")])
    else:
        write_json({"file": str(output), "summary": summary_of(digest)}, style)
    if show and not webbrowser.open(output.resolve().as_uri()):
        raise _ReportError(f"cannot open {output}: no web browser found; open the file manually")


def _require_deltalake() -> None:
    """Raise _ReportError if the library that reads the tables is not installed."""
    try:
        import deltalake  # noqa: F401, PLC0415 - only to say in one line that it is missing
    except ImportError:
        raise _ReportError(f"cannot read tables: deltalake is not installed. Install it with: {how_to_install('pipeline')}") from None


def _make(tables: ArchivePath, hours: int | None) -> tuple[Digest, str]:
    """Return the digest of the tables, and the page. Raises SbusError if they cannot be read."""
    from sbus_archive.report.digest import digest_of  # noqa: PLC0415 - behind the check
    from sbus_archive.report.rendering import page_of  # noqa: PLC0415

    snapshot = _read(tables, hours)
    digest = digest_of(snapshot, _names(snapshot), time.time_ns() // 10**6, _earlier(tables, snapshot))
    return digest, page_of(digest.data)


def _read(tables: ArchivePath, hours: int | None) -> TableSnapshot:
    """Return the tables of the last *hours*, counted back from the last hour in the tables."""
    from sbus_archive.record.layout import HOUR_NS  # noqa: PLC0415
    from sbus_archive.tables.hours import Hour  # noqa: PLC0415
    from sbus_archive.tables.storage import read_hours, read_tables  # noqa: PLC0415

    if isinstance(tables, Path) and not tables.is_dir():
        raise _ReportError(f"{tables}: no tables found. Run: {_how_to_refresh(tables)}")
    if isinstance(tables, Path) and not os.access(tables, os.R_OK | os.X_OK):
        raise _ReportError(
            f"cannot read {tables}: permission denied: tables show the activity of all users. "
            "Run this command as root, or as a member of the group that owns the directory"
        )
    since: Hour | None = None
    if hours is not None and (known := read_hours(tables)):
        since = Hour.at(known[-1].start - (hours - 1) * HOUR_NS)
    snapshot = read_tables(tables, since=since)
    if not snapshot.manifests:
        raise _ReportError(f"{tables}: the tables have no hours: no segment of the record was complete. Run: {_how_to_refresh(tables)}")
    return snapshot


def _earlier(tables: ArchivePath, snapshot: TableSnapshot) -> list[Earlier]:
    """Return the periods to compare *snapshot* with, a day and a week before, with what the tables have of them."""
    from sbus_archive.report.coverage import COMPARED, Earlier, earlier_periods  # noqa: PLC0415
    from sbus_archive.tables.storage import read_tables  # noqa: PLC0415 - behind the check

    return [
        Earlier(period, read_tables(tables, since=period.since, until=period.until, names=COMPARED))
        for period in earlier_periods(snapshot.manifests)
    ]


def _how_to_refresh(tables: ArchivePath) -> str:
    """Return the command that makes the tables."""
    if tables != TABLES:
        return f"sbusctl report --now --archive DIR --tables {tables}"
    return "sbusctl report --now" if os.geteuid() == 0 else "sudo sbusctl report --now"


def _names(snapshot: TableSnapshot) -> _LoginNames:
    """Return the names of the users."""
    hosts = {entry.host for manifest in snapshot.manifests.values() for entry in manifest.segments}
    return _LoginNames(is_known=hosts == {socket.gethostname()})


class _LoginNames:
    """Login names by user id. They are unknown if another host made the record."""

    def __init__(self, *, is_known: bool) -> None:
        self._is_known = is_known

    def __call__(self, uid: int) -> str | None:
        """Return the login name of *uid*, or None."""
        try:
            return pwd.getpwuid(uid).pw_name if self._is_known else None
        except (KeyError, OverflowError):
            return None


def _write(path: Path, page: str) -> None:
    """Write the page atomically to *path*, readable only for its owner: it contains activity of users."""
    if path.exists() and not (path.is_file() or path.is_dir() or path.is_symlink()):
        raise _ReportError(f"cannot write {path}: is not a regular file")  # it would be replaced by one
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as stream:
            stream.write(page)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise _ReportError(f"cannot write {path}: {error.strerror or error}") from None
