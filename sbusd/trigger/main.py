"""The program sbus-trigger(8)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Annotated

import typer

from sbusd.client import bus_address
from sbusd.config.files import ConfigError, default_main_file
from sbusd.config.loading import load_settings
from sbusd.config.trigger import TriggerSettings
from sbusd.config.users import ChargedUsers
from sbusd.helptext import CheckOption, PlainCommand, VersionOption, config_option, program_app
from sbusd.protocol.errors import SbusError
from sbusd.standard_error import fail
from sbusd.standard_output import print_line
from sbusd.systemd.event_loop import on_ending_signal, run_service
from sbusd.systemd.log_records import LimitedLog
from sbusd.systemd.service_manager import ServiceManager
from sbusd.systemd.signals import exit_on_ending_signals
from sbusd.trigger import log_messages
from sbusd.trigger.jobs import ServiceManagerCalls
from sbusd.trigger.message_files import MessageFiles
from sbusd.trigger.report import Report
from sbusd.trigger.rule_state import warnings
from sbusd.trigger.service import Trigger, TriggerError

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
    try:
        configured = load_settings(main_file, TriggerSettings, required=config is not None)
        settings = _placed(configured, is_user=user)
        if check:
            for warning in warnings(settings.bus, settings.rules):
                typer.echo(f"sbus-trigger: warning: {warning}", err=True)
            print_line("sbus-trigger", "configuration is valid")
            return
        exit_on_ending_signals()
        # On a bus that belongs to others, only the services of its owner publish under trigger/.
        run_service(_run(settings, is_user=user, announces=not user or not configured.bus))
    except (ConfigError, TriggerError) as wrong:
        fail("sbus-trigger", str(wrong), os.EX_CONFIG)
    except SbusError as wrong:
        fail("sbus-trigger", str(wrong))
    except OSError as wrong:
        fail("sbus-trigger", f"{wrong.filename}: {wrong.strerror}" if wrong.filename else str(wrong))


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


async def _run(settings: TriggerSettings, *, is_user: bool, announces: bool) -> None:
    """Start units until SIGTERM or SIGINT. Raises SbusError, OSError."""
    log, manager, charged = LimitedLog("sbus-trigger"), ServiceManager.of_environment(), ChargedUsers()
    charged.start()
    made = Trigger(
        settings,
        ServiceManagerCalls(is_user=is_user),
        MessageFiles(Path(settings.folder)),
        Report(log),
        manager.alive,
        charged=charged,
        announces=announces,
    )
    is_ready = False

    def ready() -> None:
        nonlocal is_ready
        if not is_ready:
            is_ready = True
            manager.ready(f"{len(settings.rules)} rules")

    try:
        task = asyncio.ensure_future(made.run(ready))

        def stop() -> None:
            manager.stopping()
            task.cancel()

        on_ending_signal(stop)
        log.record(log_messages.STARTED, rules=len(settings.rules), bus=settings.bus)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        except (SbusError, OSError):
            raise
        except Exception as error:
            log.record(log_messages.FAULT, reason=f"{type(error).__name__}: {error}")
            raise
        log.record(log_messages.STOPPED, lost=made.lost)
    finally:
        charged.close()
        manager.close()


if __name__ == "__main__":
    main()
