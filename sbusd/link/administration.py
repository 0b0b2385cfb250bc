"""The second connection of the link to its bus: serves ``link/status`` and ``link/sync``, and publishes events and the state.

Spec: sbus-link(8), "ON THE BUS".
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from sbusd.backoff import Attempts
from sbusd.client import SbusError
from sbusd.client.asyncio.service_bus import ServiceBus
from sbusd.client.errors import RemoteRefusal, ServiceError
from sbusd.client.rpc.requests import Request
from sbusd.client.rpc.service import MAX_CONCURRENT_HANDLERS
from sbusd.link.events import Event, encode

MAX_WAITING = 48
"""Calls of ``link/sync`` that can wait at the same time. The client library runs 64 calls at the same time, so others are still served."""

MAX_WAITING_OF_USER = 4
"""Those of one user."""

SYNC_SECONDS = 30.0
"""A call of ``link/sync`` fails after this time."""


class Administered(Protocol):
    """The link as its commands need it."""

    def state(self) -> bytes:
        """Return the state as JSON."""

    def synchronize(self, done: Callable[[], None]) -> None:
        """Call *done* once all live hosts know what clients of this host want now."""

    def cancel(self, done: Callable[[], None]) -> None:
        """Do not call *done*."""


class Administration:
    """Use :meth:`run`. *report* gets one line for each refusal of the bus; *charged* returns the user that is charged for a uid."""

    def __init__(self, address: str, link: Administered, report: Callable[[str], None], charged: Callable[[int], int]) -> None:
        self._address = address
        self._link = link
        self._report = report
        self._charged = charged
        self._bus: ServiceBus | None = None
        self._waiting: Counter[int] = Counter()

    async def run(self) -> None:
        """Serve, and connect again whenever the connection ends, until cancelled."""
        async for _ in Attempts():
            try:
                async with ServiceBus.connect(self._address or None) as bus:
                    bus.service("link/status")(self._on_status)
                    bus.service("link/sync")(self._on_sync)
                    self._bus = bus
                    await bus.serve_all(self._charged, max_concurrent=MAX_CONCURRENT_HANDLERS)
            except (SbusError, OSError) as error:
                if isinstance(error, RemoteRefusal | PermissionError):  # a bus that is away is reported by the other connection
                    self._report(f"the bus does not let the link serve its commands: {error}")
            finally:
                self._bus = None

    async def publish(self, events: Sequence[Event], *, with_state: bool) -> None:
        """Publish *events*, and the state; without a connection they are not published."""
        bus = self._bus
        if bus is None:
            return
        try:
            for event in events:
                await bus.publish(event[0], encode(event))
            if with_state:
                await bus.publish("link/state", self._link.state())
        except (SbusError, OSError) as error:
            if isinstance(error, RemoteRefusal | PermissionError):
                self._report(f"the bus does not let the link publish under link/: {error}")

    def _on_status(self, _request: Request) -> bytes:
        return self._link.state()

    async def _on_sync(self, request: Request) -> bytes:
        with self._counted(request.party[0]):
            done = asyncio.Event()
            self._link.synchronize(done.set)
            seconds = SYNC_SECONDS
            if request.expires_at is not None:
                seconds = min(seconds, max(0.0, request.expires_at - time.time()))
            try:
                async with asyncio.timeout(seconds):
                    await done.wait()
            except TimeoutError:
                raise ServiceError(f"not all hosts have confirmed within {seconds:.0f} s; see sbusctl link status") from None
            finally:
                self._link.cancel(done.set)
        return b"{}"

    @contextmanager
    def _counted(self, uid: int) -> Iterator[None]:
        """Count one waiting call of the user *uid*. Raises ServiceError if there are too many."""
        if self._waiting[uid] >= MAX_WAITING_OF_USER or self._waiting.total() >= MAX_WAITING:
            raise ServiceError(f"too many calls of link/sync wait: at most {MAX_WAITING_OF_USER} of one user and {MAX_WAITING} in all")
        self._waiting[uid] += 1
        try:
            yield
        finally:
            self._waiting[uid] -= 1
            if not self._waiting[uid]:
                del self._waiting[uid]
