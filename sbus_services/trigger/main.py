"""The program sbus-trigger(8)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Annotated

import typer

from sbus import bus_address
from sbus_programs.config.files import default_main_file
from sbus_programs.config.loading import load_settings
from sbus_programs.config.trigger import TriggerSettings
from sbus_programs.helptext import CheckOption, PlainCommand, VersionOption, config_option, program_app
from sbus_programs.program import run_configured
from sbus_programs.running_service import RunningService, serve
from sbus_services.trigger import log_messages
from sbus_services.trigger.jobs import ServiceManagerCalls
from sbus_services.trigger.message_files import MessageFiles
from sbus_services.trigger.report import Report
from sbus_services.trigger.rule_state import warnings
from sbus_services.trigger.service import Trigger, TriggerError

SYSTEM_FOLDER = "/run/sbus-trigger"

app = program_app("Start units of systemd when messages arrive on the bus.", "sbus-trigger")


@app.command(cls=PlainCommand)
def trigger(
    *,
    config: Annotated[Path | None, config_option("trigger.toml")] = None,
    user: Annotated[
        bool, typer.Option("--user", help="Start units of the user, by the bus of the user and the file in ~/.config/sbus.")
    ] = False,
    check: CheckOption = False,
    _version: VersionOption = False,
) -> None:
    """Start units of systemd when messages arrive on the bus, see sbus-trigger(8)."""
    main_file = config or default_main_file("trigger.toml", user_bus=user)

    def run(configured: TriggerSettings) -> None:
        settings = _placed(configured, is_user=user)
        # On a bus that belongs to others, only the services of its owner publish under trigger/.
        announces = not user or not configured.bus
        serve("sbus-trigger", lambda service: _trigger(service, settings, is_user=user, announces=announces), fault=log_messages.FAULT)

    run_configured(
        "sbus-trigger",
        main_file,
        lambda: load_settings(main_file, TriggerSettings, required=config is not None),
        run,
        is_check=check,
        check=lambda configured: _warn(_placed(configured, is_user=user)),
        permanent=(TriggerError,),
    )


def main() -> None:
    """Run the program. Status: 0 after SIGTERM or SIGINT, 1 after an error, 2 for wrong options, 78 if the configuration must change."""
    app(prog_name="sbus-trigger")


def _placed(settings: TriggerSettings, *, is_user: bool) -> TriggerSettings:
    """Return *settings* with the bus and the folder of this service, unless the configuration names others."""
    bus = settings.bus or bus_address(scope="user" if is_user else "system")
    folder = settings.folder or os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if not folder and is_user and (runtime := os.environ.get("XDG_RUNTIME_DIR")):
        folder = f"{runtime}/sbus-trigger"
    return dataclasses.replace(settings, bus=bus, folder=folder or SYSTEM_FOLDER)


def _warn(settings: TriggerSettings) -> None:
    """Print what may be a mistake in *settings*."""
    for warning in warnings(settings.bus, settings.rules):
        typer.echo(f"sbus-trigger: warning: {warning}", err=True)


async def _trigger(service: RunningService, settings: TriggerSettings, *, is_user: bool, announces: bool) -> None:
    """Start units until cancelled."""
    made = Trigger(
        settings,
        ServiceManagerCalls(is_user=is_user),
        MessageFiles(Path(settings.folder)),
        Report(service.log),
        service.alive,
        charged=service.charged,
        announces=announces,
    )
    service.log.record(log_messages.STARTED, rules=len(settings.rules), bus=settings.bus)
    with contextlib.suppress(asyncio.CancelledError):
        await made.run(lambda: service.ready(f"{len(settings.rules)} rules"))
    service.log.record(log_messages.STOPPED, lost=made.lost)


if __name__ == "__main__":
    main()
