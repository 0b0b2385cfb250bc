"""The life of a service in an event loop: start, readiness, reload, signs of life, and the end by a signal or an error."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from sbus.protocol.errors import SbusError
from sbus_programs.config.users import ChargedUsers
from sbus_programs.exhaustion import exhausted
from sbus_programs.systemd.event_loop import run_until_signal
from sbus_programs.systemd.log_records import LimitedLog, LogMessage
from sbus_programs.systemd.service_manager import ServiceManager


class ServiceError(SbusError):
    """The service cannot run; the text is one line."""


class RunningService:
    """What a service uses while it runs: its log, the users that it charges, and its service manager."""

    def __init__(self, program: str) -> None:
        """Raises ServiceManagerError."""
        self.log = LimitedLog(program)
        self.charged = ChargedUsers()
        self._manager = ServiceManager.of_environment()
        self._is_ready = False
        self._is_stopping = False

    def ready(self, status: str) -> None:
        """Notify the service manager that the service is ready. Only the first call has an effect. Raises ServiceManagerError."""
        if not self._is_ready:
            self._is_ready = True
            self._manager.ready(status)

    def alive(self, status: str = "") -> None:
        """Notify the watchdog, with *status* for people; again and again, at least twice in the interval of the unit."""
        self._manager.alive(status)

    def reload_by(self, reload: Callable[[], Awaitable[None]]) -> None:
        """From now on, SIGHUP causes one call of *reload*, after the one that runs. *reload* reports its errors itself."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, Reloads(reload, self._manager).begin)

    def stopping(self) -> None:
        """Notify the service manager that the service stops, once: at the signal, which also extends the time for the stop."""
        if not self._is_stopping:
            self._is_stopping = True
            self._manager.stopping()

    def close(self) -> None:
        """Release what the service has used."""
        self.stopping()
        self.charged.close()
        self._manager.close()


class Reloads:
    """Reloads a service, once after each other."""

    def __init__(self, reload: Callable[[], Awaitable[None]], manager: ServiceManager) -> None:
        """*reload* reports its errors itself; *manager* is notified of the begin and the end."""
        self._reload = reload
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
            await self._reload()
        finally:
            self._manager.reloaded()
            self._task = None
            if self._again:
                self._again = False
                self.begin()


Work = Callable[[RunningService], Coroutine[Any, Any, None]]
"""A service: works until it is cancelled."""


def serve(program: str, work: Work, *, fault: LogMessage | None = None, doing: str = "") -> None:
    """Run the service *work* until a signal cancels it, or it returns.

    An unexpected error is logged as *fault*, if there is one, and raised. *doing* says what failed if an OSError names no file.

    Raises:
        ServiceManagerError: the service manager cannot be notified.
        ServiceError: an OSError without a file; *doing* is given.
        Exception: what *work* raises; instead of a group, its first error if that is an SbusError or OSError.
    """
    service = RunningService(program)
    try:
        run_until_signal(_live(service, work, fault, doing), service.stopping)
    finally:
        service.close()


async def _live(service: RunningService, work: Work, fault: LogMessage | None, doing: str) -> None:
    """Start, and work until cancelled."""
    try:
        service.charged.start()
        await work(service)
    except Exception as error:
        first = _first(error)
        if isinstance(first, OSError) and not isinstance(first, SbusError) and doing and not first.filename and not exhausted(first):
            raise ServiceError(f"{doing}: {first.strerror or first}") from None
        if isinstance(first, SbusError | OSError):
            raise first from None
        if fault is not None:
            service.log.record(fault, reason=f"{type(first).__name__}: {first}")
        raise


def _first(error: Exception) -> Exception:
    """Return *error*, or of a group the first one that is not a group."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
