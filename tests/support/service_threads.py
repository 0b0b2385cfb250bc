"""Services for tests, each with its own ``Bus`` in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sbus import Allow, Bus, Request, SbusError
from sbus.protocol.memberships import SERVICE_GROUP
from sbus.statistics import Statistics
from tests.support.minibus import WAIT_SECONDS, MiniBus

Handler = Callable[[Request], Any]


class ServiceThread:
    """One service; ``connection`` is its number on the bus, and ``statistics`` is set when it has ended."""

    def __init__(self, address: str, handlers: dict[str, Handler], allow: Allow | None, reconnect: bool, group: str) -> None:
        self.connection = 0
        self.statistics: Statistics | None = None
        self.error: BaseException | None = None
        self._handlers = handlers
        self._allow = allow
        self._group = group
        self._ready = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(address, reconnect))
        self.thread.start()
        assert self._ready.wait(WAIT_SECONDS)

    def _run(self, address: str, reconnect: bool) -> None:
        with Bus.connect(address, reconnect=reconnect) as bus:
            for command, handler in self._handlers.items():
                bus.service(command, allow=self._allow, group=self._group)(handler)
            self.connection = int(bus.address.split("/")[2])
            try:
                bus.serve(ready=self._ready.set)
            except (SbusError, SystemExit) as error:
                self.error = error
            finally:
                self._ready.set()
                self.statistics = bus.statistics


class ServiceThreads:
    """All services of a test."""

    def __init__(self, bus: MiniBus) -> None:
        self._bus = bus
        self._made: list[ServiceThread] = []

    def add(self, allow: Allow | None = None, reconnect: bool = False, group: str = SERVICE_GROUP, **handlers: Handler) -> ServiceThread:
        """Start a service; return when callers can reach it."""
        service = ServiceThread(self._bus.address, handlers, allow, reconnect, group)
        self._made.append(service)
        return service

    def end(self, service: ServiceThread) -> Statistics:
        """Disconnect a service, and return its statistics."""
        self._bus.hang_up(service.connection)
        service.thread.join(WAIT_SECONDS)
        assert service.statistics is not None
        return service.statistics

    def close(self) -> None:
        """Stop all services."""
        for service in self._made:
            self.end(service)
