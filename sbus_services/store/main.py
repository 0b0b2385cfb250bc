"""The program sbus-store(8)."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from sbus import bus_address
from sbus.protocol.errors import SbusError
from sbus_programs.config.files import default_main_file
from sbus_programs.config.loading import load_settings
from sbus_programs.config.store import StoreSettings
from sbus_programs.helptext import CheckOption, PlainCommand, VersionOption, config_option, program_app
from sbus_programs.program import run_configured
from sbus_programs.running_service import RunningService, ServiceError, serve
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.store import log_messages
from sbus_services.store.engine.clocks import SystemClock
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import DeadLetter, EngineError
from sbus_services.store.service import StoreService

FILE_NAME = "store.sqlite"

app = program_app("Store messages: last values, durable readers and work queues.", "sbus-store")


@app.command(cls=PlainCommand)
def store(
    *,
    config: Annotated[Path | None, config_option("store.toml")] = None,
    user: Annotated[bool, typer.Option("--user", help="Use the bus of the user, and the configuration file in ~/.config/sbus.")] = False,
    check: CheckOption = False,
    _version: VersionOption = False,
) -> None:
    """Store messages of the bus, see sbus-store(8)."""
    main_file = config or default_main_file("store.toml", user_bus=user)

    def load() -> StoreSettings:
        return _placed(load_settings(main_file, StoreSettings, required=config is not None), user_bus=user)

    run_configured(
        "sbus-store",
        main_file,
        load,
        lambda settings: serve("sbus-store", lambda service: _store(service, settings, load), fault=log_messages.FAULT),
        is_check=check,
        permanent=(ValueError,),
    )


def main() -> None:
    """Run the program.

    Status: 0 after SIGTERM or SIGINT, 1 after an error, 2 for wrong options, 78 if the configuration must change.
    """
    app(prog_name="sbus-store")


def _placed(settings: StoreSettings, *, user_bus: bool) -> StoreSettings:
    """Return *settings* with the bus and the file of this service, unless the configuration names others."""
    defaults = StoreSettings()
    folder = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if settings.file == defaults.file and folder:
        settings = dataclasses.replace(settings, file=os.path.join(folder, FILE_NAME))
    if settings.bus == defaults.bus and user_bus:
        settings = dataclasses.replace(settings, bus=bus_address(scope="user"))
    return settings


def _open_file(settings: StoreSettings, report: Callable[[str], None]) -> Engine:
    """Open the file of *settings*; *report* gets lines for the log. Raises EngineError."""
    path = Path(settings.file)
    return Engine(path, settings, SystemClock(report, path.with_name(f"{path.name}.date")))


class _Log:
    """Writes what the store reports to the log."""

    def __init__(self, log: LimitedLog, bus: str) -> None:
        self._log = log
        self._bus = bus

    def problem(self, words: str) -> None:
        """Report a problem; those with the same beginning are one cause."""
        message = log_messages.NOT_STORED if "not stored" in words else log_messages.PROBLEM
        self._log.record_limited(message, words.partition(": ")[0], reason=words)

    def bus_available(self) -> None:
        """Report that calls are served."""
        self._log.record_limited(log_messages.BUS_AVAILABLE, "bus", bus=self._bus or "the default address")

    def bus_unavailable(self, reason: str) -> None:
        """Report that the connection to the bus has ended, or cannot be made."""
        self._log.record_limited(log_messages.BUS_UNAVAILABLE, "bus", reason=reason)

    def dead_letter(self, letter: DeadLetter) -> None:
        """Report a job that will not be tried again."""
        self._log.record_limited(log_messages.DEAD_LETTER, letter.queue, queue=letter.queue, reason=letter.reason)


async def _store(service: RunningService, settings: StoreSettings, load: Callable[[], StoreSettings]) -> None:
    """Store until cancelled; *load* reads the settings again. Raises ServiceError."""
    log = service.log
    made = StoreService(settings, _open_file, _Log(log, settings.bus), service.alive, service.charged)

    async def reload() -> None:
        try:
            settings = load()
            await made.reload(settings)
        except SbusError as refused:
            log.record(log_messages.RELOAD_REFUSED, reason=refused.reason if isinstance(refused, EngineError) else str(refused))
        else:
            log.record(log_messages.RELOADED, streams=len(settings.streams), queues=len(settings.queues))

    try:
        await made.open()
        service.reload_by(reload)
        log.record(log_messages.STARTED, streams=len(settings.streams), queues=len(settings.queues), file=settings.file)
        await made.run(lambda: service.ready("storing"))
    except asyncio.CancelledError:
        log.record(log_messages.STOPPED, file=settings.file)
    except EngineError as error:
        raise ServiceError(error.reason) from None


if __name__ == "__main__":
    main()
