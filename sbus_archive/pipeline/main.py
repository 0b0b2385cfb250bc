"""The program sbus-pipeline(8)."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sbus.protocol.errors import SbusError
from sbus_archive.optional_packages import how_to_install, use_local_packages
from sbus_archive.pipeline.errors import PermanentError, PipelineError, root_cause
from sbus_archive.pipeline.lock import ENGINE_LOCK, RUN_LOCK, engine_lock, run_lock
from sbus_archive.pipeline.progress import Progress
from sbus_archive.pipeline.session import is_on_cluster, spark_session
from sbus_archive.record.layout import INDEX
from sbus_archive.storage.files import UMASK, check_owner, make_private
from sbus_archive.storage.location import ArchivePath, LocationError, is_remote, parse_location, parse_tables_location
from sbus_archive.storage.store import store_of
from sbus_programs.helptext import PlainCommand, VersionOption
from sbus_programs.systemd.service_manager import ServiceManager

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = Path("/var/lib/sbus-recorder/archive")
TABLES = Path("/var/lib/sbus-pipeline")

_INTERRUPTED = 130

_MASTER = re.compile(r"yarn|local(-cluster)?(\[[^\[\]]+\])?|(spark|k8s)://.+")
"""Valid values of --master. Spark would reject others with twenty lines."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(epilog="See sbus-pipeline(8).", cls=PlainCommand)
def pipeline(
    archive: Annotated[str, typer.Option(metavar="DIR", help="Archive of sbus-recorder: a directory, or s3://BUCKET/PREFIX.")] = str(
        ARCHIVE
    ),
    tables: Annotated[str, typer.Option(metavar="DIR", help="Directory of the tables, or s3://BUCKET/PREFIX.")] = str(TABLES),
    master: Annotated[str | None, typer.Option(metavar="URL", help="Spark cluster to run on (default: this machine).")] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Recompute all hours whose segments still exist.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors and warnings.")] = False,
    _version: VersionOption = False,
) -> None:
    """Update the tables from the archive."""
    if master is not None and _MASTER.fullmatch(master) is None:
        raise typer.BadParameter(
            f"{master!r} is not a Spark master. Use spark://HOST:PORT, k8s://…, yarn or local[N]", param_hint="--master"
        )
    progress = Progress(quiet, _status_reporter())
    try:
        _run(_archive_location(archive), _tables_location(tables), master, rebuild=rebuild, progress=progress)
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except SbusError as error:
        if sys.flags.dev_mode and error.__cause__ is not None:
            raise
        _fail(progress, str(error), os.EX_CONFIG if isinstance(error, PermanentError) else 1)
    except OSError as error:
        advice = ". Run: systemctl start sbus-pipeline.service" if isinstance(error, PermissionError) and archive == str(ARCHIVE) else ""
        _fail(progress, f"{error.filename or tables}: {error.strerror or error}{advice}")
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        # Exceptions of Spark have no common base class, and a hundred lines.
        _fail(progress, f"Spark failed while updating {tables}: {root_cause(error)}. Run with python3 -X dev for a traceback")


def main() -> None:
    """Run the program, and exit. Status: 0; 1 after an error; 78 if a package or Java is missing; 130 after Ctrl-C."""
    app(prog_name="sbus-pipeline")


def _status_reporter() -> Callable[[str], object]:
    """Return the function that reports a status to the service manager, if there is one."""
    if "NOTIFY_SOCKET" not in os.environ:
        return lambda _words: None
    manager = ServiceManager.of_environment()
    return lambda words: manager.notify(f"STATUS={words}")


def _require_packages() -> None:
    """Raise PermanentError if a package that the tables need is not installed."""
    use_local_packages()
    for module, package in (("pyarrow", "PyArrow"), ("deltalake", "deltalake")):
        try:
            importlib.import_module(module)
        except ImportError:
            raise PermanentError(f"{package} is not installed. Install it with: {how_to_install('pipeline')}") from None


def _prepare_directory(tables: Path) -> None:
    """Create the directory of the tables, or check it, and close it to other users.

    Raises:
        PipelineError, ExposedFolderError, OSError: it cannot be used.
    """
    from sbus_archive.pipeline.run import KNOWN_INDEX  # noqa: PLC0415
    from sbus_archive.tables.data_files import STAGING  # noqa: PLC0415
    from sbus_archive.tables.hours import MANIFESTS  # noqa: PLC0415 - behind the check for packages
    from sbus_archive.tables.schema import TABLES as SCHEMAS  # noqa: PLC0415

    if tables.exists() and not tables.is_dir():
        raise PipelineError(f"{tables}: not a directory. Name the directory of the tables with --tables")
    names = (*(table.name for table in SCHEMAS), MANIFESTS, KNOWN_INDEX, RUN_LOCK, ENGINE_LOCK, f"{STAGING}*")
    make_private(tables, names)


def _archive_location(text: str) -> ArchivePath:
    """Return the location of the archive. Raises PipelineError if it is invalid."""
    try:
        return parse_location(text)
    except LocationError as error:
        raise PipelineError(f"--archive: {error}") from None


def _tables_location(text: str) -> ArchivePath:
    """Return the location of the tables. Raises PipelineError if it is invalid."""
    try:
        return parse_tables_location(text)
    except LocationError as error:
        raise PipelineError(f"--tables: {error}") from None


def _run(archive: ArchivePath, tables: ArchivePath, master: str | None, *, rebuild: bool, progress: Progress) -> None:
    """Run the pipeline once."""
    if is_remote(archive):
        _require_packages()  # the clients of object stores are part of PyArrow
    store = store_of(archive)
    if not is_remote(archive) and not store.is_folder():
        raise PipelineError(f"{archive}: not an archive: no such directory. {_how_to_record(archive)}")
    if not store.is_folder(INDEX):
        raise PipelineError(f"{archive}: not an archive: no index. {_how_to_record(archive)}")
    _require_packages()
    # The tables reveal as much as the record. Spark and the Delta library use the umask for their files.
    os.umask(os.umask(UMASK) | UMASK)
    from sbus_archive.pipeline.run import PipelineRun  # noqa: PLC0415
    from sbus_archive.record.segments import RecordReader  # noqa: PLC0415 - behind the check for packages

    with contextlib.ExitStack() as running:
        if isinstance(tables, Path):
            check_owner(tables, _command(archive, tables, master, rebuild=rebuild))
            _prepare_directory(tables)
            running.enter_context(run_lock(tables))

        def start(*, is_small: bool) -> SparkSession:
            spark = running.enter_context(spark_session(master, is_small=is_small))
            if isinstance(tables, Path):
                running.enter_context(engine_lock(spark, tables))
            return spark

        run = PipelineRun(RecordReader(archive), tables, progress, start, rebuild=rebuild, is_on_cluster=is_on_cluster(master))
        for line in run.run().lines():
            progress.print_result(line)


def _command(archive: ArchivePath, tables: Path, master: str | None, *, rebuild: bool) -> list[str]:
    """Return the command that runs the pipeline so in any working directory."""
    source = archive.absolute() if isinstance(archive, Path) else archive
    options = ["--archive", str(source), "--tables", str(tables.absolute())]
    return ["sbus-pipeline", *options, *(["--master", master] if master else []), *(["--rebuild"] if rebuild else [])]


def _how_to_record(archive: ArchivePath) -> str:
    """Return the sentence that says how *archive* is made."""
    if is_remote(archive):
        return "Copy one there with sbus-ship(8)"
    if archive == ARCHIVE:
        return "Start the recorder: systemctl enable --now sbus-recorder.service"
    return f"Record one with: sbusctl record --archive {archive}"


def _fail(progress: Progress, line: str, status: int = 1) -> NoReturn:
    """Print one line, and exit with *status*."""
    progress.fail(line)
    raise typer.Exit(status)
