"""The program sbus-live(8)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from sbus_archive.optional_packages import how_to_install, use_local_packages
from sbus_archive.pipeline.errors import PermanentError, PipelineError, root_cause
from sbus_archive.pipeline.live.live_state import MINUTES, STATE, LiveState, lines_of
from sbus_archive.pipeline.lock import ENGINE_LOCK, RUN_LOCK, engine_lock, run_lock
from sbus_archive.pipeline.session import spark_session
from sbus_archive.storage.files import UMASK, make_private
from sbus_programs.config.files import default_main_file
from sbus_programs.config.live import LiveSettings, load_live_settings
from sbus_programs.helptext import PlainCommand, VersionOption, require_only
from sbus_programs.program import check_configuration, failing_with_status
from sbus_programs.standard_error import fail, print_error
from sbus_programs.standard_output import print_line

PROGRAM = "sbus-live"
FOLDER = Path("/var/lib/sbus-live")
TABLES = Path("/var/lib/sbus-pipeline")

SHOWN_MINUTES = 60
"""Default and maximum of ``--minutes``: the job keeps no more."""

_INTERRUPTED = 130

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(epilog="See sbus-live(8).", cls=PlainCommand)
def live(
    context: typer.Context,
    *,
    address: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address of the bus.")] = None,
    state: Annotated[Path, typer.Option(metavar="DIR", readable=False, help="Directory of the counters and alerts.")] = FOLDER,
    tables: Annotated[Path, typer.Option(metavar="DIR", readable=False, help="Directory of the tables of sbus-pipeline.")] = TABLES,
    config: Annotated[
        Path | None, typer.Option("--config", "-C", metavar="FILE", help="Configuration file (default: /etc/sbus/live.toml).")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the configuration and exit.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print the tables of the last minutes and exit.")] = False,
    minutes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=SHOWN_MINUTES, help=f"With --show: the number of minutes. Default: {SHOWN_MINUTES}."),
    ] = None,
    _version: VersionOption = False,
) -> None:
    """Count the traffic of a bus minute by minute, and publish alerts."""
    if show:
        require_only(context, "--show", "show", "minutes", "state")
    elif check:
        require_only(context, "--check", "check", "config")
    elif minutes is not None:
        raise typer.BadParameter("--minutes requires --show")
    main_file = config or default_main_file("live.toml")

    def load() -> LiveSettings:
        return load_live_settings(main_file, required=config is not None)

    try:
        with failing_with_status(PROGRAM, PermanentError, doing=str(state)):
            if show:
                _show(state, minutes or SHOWN_MINUTES)
            elif check:
                check_configuration("sbus-live", main_file, load)
            else:
                _run(load(), state, tables, address)
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        # Exceptions of Spark have no common base class, and a hundred lines.
        fail(PROGRAM, f"Spark failed: {root_cause(error)}. Run with python3 -X dev for a traceback")


def main() -> None:
    """Run the program, and exit. Status: 0; 1 after an error; 78 for an error that a restart cannot repair; 130 after Ctrl-C."""
    app(prog_name=PROGRAM)


def _show(folder: Path, minutes: int) -> None:
    """Print the tables of the state in *folder*."""
    if not (folder / STATE).exists():
        raise PipelineError(f"{folder}: no counters. Start the job: systemctl enable --now sbus-live.service")
    for line in lines_of(LiveState.load(folder), minutes):
        print_line(PROGRAM, line)


def _run(settings: LiveSettings, folder: Path, tables: Path, address: str | None) -> None:
    """Run the job until an error."""
    if folder.exists() and not folder.is_dir():
        raise PipelineError(f"{folder}: not a directory. Name the directory of the counters with --state")
    os.umask(os.umask(UMASK) | UMASK)
    use_local_packages()
    make_private(folder, (STATE, f".{STATE}.tmp", MINUTES, "checkpoint", "outbox", RUN_LOCK, ENGINE_LOCK))
    # A damaged state is reported before Spark starts.
    LiveState.load(folder)
    with run_lock(folder, program=PROGRAM), spark_session(None, is_small=True) as spark, engine_lock(spark, folder):
        try:
            from sbus_archive.pipeline.live.job import LiveJob  # noqa: PLC0415 - it needs PySpark and PyArrow, optional packages
        except ImportError as error:
            package = "deltalake" if error.name == "deltalake" else "PyArrow"
            raise PermanentError(f"{package} is not installed. Install it with: {how_to_install('pipeline')}") from None
        LiveJob(spark, settings, folder, tables, address, _warn).run()


def _warn(line: str) -> None:
    """Print one line on standard error."""
    print_error(PROGRAM, line)
