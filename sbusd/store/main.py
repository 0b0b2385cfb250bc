"""The program sbus-store(8)."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from sbusd.client import bus_address
from sbusd.config.files import ConfigError, default_main_file
from sbusd.config.loading import load_settings
from sbusd.config.store import StoreSettings
from sbusd.config.users import ChargedUsers
from sbusd.helptext import CheckOption, PlainCommand, VersionOption, config_option, program_app
from sbusd.program import check_configuration
from sbusd.protocol.errors import SbusError
from sbusd.standard_error import fail
from sbusd.store import log_messages
from sbusd.store.engine.clocks import SystemClock
from sbusd.store.engine.engine import Engine
from sbusd.store.engine.messages import DeadLetter, EngineError
from sbusd.store.service import StoreService
from sbusd.systemd.event_loop import on_ending_signal, run_service
from sbusd.systemd.log_records import LimitedLog
from sbusd.systemd.service_manager import ServiceManager
from sbusd.systemd.signals import exit_on_ending_signals

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

    try:
        if check:
            check_configuration("sbus-store", main_file, load)
            return
        exit_on_ending_signals()
        settings = load()
        run_service(_run(settings, load))
    except ConfigError as wrong:
        fail("sbus-store", str(wrong), os.EX_CONFIG)
    except SbusError as wrong:
        fail(
            "sbus-store",
            wrong.reason if isinstance(wrong, EngineError) else str(wrong),
            os.EX_CONFIG if isinstance(wrong, ValueError) else 1,
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


async def _run(settings: StoreSettings, load: Callable[[], StoreSettings]) -> None:
    """Store until SIGTERM or SIGINT. Raises SbusError."""
    log, manager, charged = LimitedLog("sbus-store"), ServiceManager.of_environment(), ChargedUsers()
    made = StoreService(settings, _open_file, _Log(log, settings.bus), manager.alive, charged)
    charged.start()

    async def store() -> None:
        await made.open()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _Reloads(made, load, log, manager).begin)
        log.record(log_messages.STARTED, streams=len(settings.streams), queues=len(settings.queues), file=settings.file)
        await made.run(_once(lambda: manager.ready("storing")))

    task = asyncio.ensure_future(store())

    def stop() -> None:
        manager.stopping()
        task.cancel()

    on_ending_signal(stop)
    try:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        except (SbusError, OSError):
            raise
        except Exception as error:
            log.record(log_messages.FAULT, reason=f"{type(error).__name__}: {error}")
            raise
        log.record(log_messages.STOPPED, file=settings.file)
    finally:
        charged.close()
        manager.close()


class _Reloads:
    """Reads the configuration again, once after each other."""

    def __init__(self, made: StoreService, load: Callable[[], StoreSettings], log: LimitedLog, manager: ServiceManager) -> None:
        self._store = made
        self._load = load
        self._log = log
        self._manager = manager
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def begin(self) -> None:
        """Reload now, or when the reload that runs is over."""
        if self._task is not None:
            self._again = True
        else:
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        self._manager.reloading()
        try:
            settings = self._load()
            await self._store.reload(settings)
        except EngineError as refused:
            self._log.record(log_messages.RELOAD_REFUSED, reason=refused.reason)
        except SbusError as refused:
            self._log.record(log_messages.RELOAD_REFUSED, reason=str(refused))
        else:
            self._log.record(log_messages.RELOADED, streams=len(settings.streams), queues=len(settings.queues))
        finally:
            self._manager.reloaded()
            self._task = None
            if self._again:
                self._again = False
                self.begin()


def _once(function: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls *function* at its first call."""
    called = False

    def call() -> None:
        nonlocal called
        if not called:
            called = True
            function()

    return call


if __name__ == "__main__":
    main()
