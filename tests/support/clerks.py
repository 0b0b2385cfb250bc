"""Services for tests, each on a ``Bus`` of its own in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sbusd.client import Allow, Bus, Request, SbusError
from sbusd.client.statistics import Statistics
from tests.support.minibus import WAIT_SECONDS, MiniBus

Handler = Callable[[Request], bytes | str | None]


class Clerk:
    """One service; ``connection`` is its number on the bus, ``statistics`` are there when it has ended."""

    def __init__(self, address: str, handlers: dict[str, Handler], allow: Allow | None, reconnect: bool) -> None:
        self.connection = 0
        self.statistics: Statistics | None = None
        self.error: BaseException | None = None
        self._handlers = handlers
        self._allow = allow
        self._ready = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(address, reconnect))
        self.thread.start()
        assert self._ready.wait(WAIT_SECONDS)

    def _run(self, address: str, reconnect: bool) -> None:
        with Bus.connect(address, reconnect=reconnect) as bus:
            for command, handler in self._handlers.items():
                bus.service(command, allow=self._allow)(handler)
            self.connection = int(bus.address.split(b"/")[2])
            try:
                bus.serve(ready=self._ready.set)
            except (SbusError, SystemExit) as error:
                self.error = error
            finally:
                self._ready.set()
                self.statistics = bus.statistics


class Clerks:
    """All services of a test."""

    def __init__(self, bus: MiniBus) -> None:
        self._bus = bus
        self._made: list[Clerk] = []

    def add(self, allow: Allow | None = None, reconnect: bool = False, **handlers: Handler) -> Clerk:
        """Return a service that callers find now."""
        clerk = Clerk(self._bus.address, handlers, allow, reconnect)
        self._made.append(clerk)
        return clerk

    def end(self, clerk: Clerk) -> Statistics:
        """Hang up on a service, and return what it counted."""
        self._bus.hang_up(clerk.connection)
        clerk.thread.join(WAIT_SECONDS)
        assert clerk.statistics is not None
        return clerk.statistics

    def close(self) -> None:
        """End all."""
        for clerk in self._made:
            self.end(clerk)
