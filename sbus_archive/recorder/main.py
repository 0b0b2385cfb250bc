"""The program sbus-recorder(8)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from sbus import bus_address
from sbus_archive.optional_packages import how_to_install, use_local_packages
from sbus_archive.storage.ownership import HostTakenError
from sbus_programs.config.files import default_main_file
from sbus_programs.config.recorder import RecorderSettings, load_recorder_settings
from sbus_programs.config.users import ChargedUsers
from sbus_programs.helptext import CheckOption, PlainCommand, VersionOption, config_option, program_app, require_only, scope_of
from sbus_programs.program import run_configured
from sbus_programs.standard_error import fail

CLOSE_SECONDS = 60.0
"""Maximum time for writing segments at exit. Most take a second; the next start converts the rest."""

app = program_app("Record the traffic of a bus.", "sbus-recorder")


@app.command(cls=PlainCommand)
def record(
    context: typer.Context,
    *,
    address: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address of the bus.")] = None,
    system: Annotated[bool, typer.Option("--system", help="Use the system bus.")] = False,
    user: Annotated[bool, typer.Option("--user", help="Use the bus of the calling user.")] = False,
    config: Annotated[Path | None, config_option("recorder.toml")] = None,
    check: CheckOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="After each write, print the position of the last row on disk.")] = False,
    _version: VersionOption = False,
) -> None:
    """Record the traffic of a bus in an archive, see sbus-record(5)."""
    scope = scope_of(address, system=system, user=user)
    if check:
        require_only(context, "--check", "check", "config", "user")
    main_file = config or default_main_file("recorder.toml", user_bus=user)
    run_configured(
        "sbus-recorder",
        main_file,
        lambda: load_recorder_settings(main_file, required=config is not None),
        lambda settings: _record(settings, bus_address(address, scope=scope), verbose=verbose),
        is_check=check,
        permanent=(PermissionError, HostTakenError),  # a bus that refuses the tap is a PermissionError too
    )


def main() -> None:
    """Run the program. Exit status: 0 after SIGTERM or SIGINT, 1 after an error, 2 for invalid options, 78 if the configuration is at
    fault."""
    app(prog_name="sbus-recorder")


def _record(settings: RecorderSettings, address: str, *, verbose: bool) -> None:
    """Record until a signal arrives."""
    use_local_packages()
    try:
        import pyarrow  # noqa: F401, PLC0415 - only to say in one line that it is missing
    except ModuleNotFoundError:
        fail("sbus-recorder", f"pyarrow is not installed. Install it with: {how_to_install('recorder')}", os.EX_CONFIG)
    from sbus_archive.recorder.log_messages import NOT_SERVED  # noqa: PLC0415
    from sbus_archive.recorder.segment_closing import Administration  # noqa: PLC0415 - behind the check
    from sbus_archive.recorder.service import Recorder  # noqa: PLC0415
    from sbus_archive.recorder.tap import RecorderTap  # noqa: PLC0415
    from sbus_programs.systemd.log_records import ServiceLog  # noqa: PLC0415
    from sbus_programs.systemd.service_manager import ServiceManager  # noqa: PLC0415
    from sbus_programs.systemd.signals import EndingSignals  # noqa: PLC0415

    tap = RecorderTap(address, settings.pattern.encode("utf-8", "surrogatepass"))
    log, manager, users = ServiceLog("sbus-recorder"), ServiceManager.of_environment(), ChargedUsers()
    recorder = Recorder(settings, tap, log, manager, durable=_print_durable if verbose else lambda _seq: None, charged=users.of)
    administration = Administration(address, settings.archive, recorder.close_segment, lambda reason: log.record(NOT_SERVED, reason=reason))
    with EndingSignals(recorder.stop) as signals:
        try:
            users.start()
            recorder.prepare()
            administration.start()
            recorder.run(signals=signals.fileno())
        finally:
            administration.stop()
            recorder.close(CLOSE_SECONDS)
            users.close()
            manager.close()


def _print_durable(seq: int) -> None:
    """Print the position of the last durable row."""
    sys.stderr.write(f"sbus-recorder: durable {seq}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
