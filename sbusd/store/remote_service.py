"""The connection of the store for calls of other hosts. Spec: sbus-store(8), "OTHER HOSTS".

It is one of its own: a bus that does not let the store serve other hosts does not stop the calls of its own users.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from sbusd.backoff import Attempts
from sbusd.client.asyncio.service_bus import ServiceBus
from sbusd.client.errors import RemoteRefusal, SbusError
from sbusd.config.store import StoreSettings
from sbusd.store.calls.remote_calls import RemoteCalls

REFUSED_SECONDS = 30.0
"""Pause after the bus has refused the services: its administrator has to change a rule."""


class _RelayedBus(ServiceBus):
    """A connection that serves other hosts; make one with ``_RelayedBus.connect``."""

    async def serve_relayed(self, calls: RemoteCalls, ready: Callable[[], None]) -> None:
        """Serve until the bus is closed. Raises what ``serve`` raises."""
        self._dispatcher = calls.dispatcher()
        await self.dispatch(self._dispatcher, ready)


class RemoteService:
    """Serves other hosts while a stream is open to one. *report* gets one line for each problem."""

    def __init__(self, calls: RemoteCalls, report: Callable[[str], None]) -> None:
        self._calls = calls
        self._report = report
        self._task: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._bus: _RelayedBus | None = None

    def configure(self, settings: StoreSettings) -> None:
        """Serve, or end, as *settings* say."""
        is_wanted = any(stream.twins for stream in settings.streams)
        if is_wanted and self._task is None:
            self._task = asyncio.ensure_future(self._run(settings.bus or None))
        elif not is_wanted and self._task is not None:
            self._task.cancel()
            self._task = None

    async def respond_to_all(self) -> None:
        """Accept no further calls, and return when those that have come are answered."""
        if self._bus is not None and self._serving is not None:
            self._bus.stop_serving()
            await asyncio.wait([self._serving])
            with contextlib.suppress(SbusError, OSError):
                await self._bus.flush()

    async def close(self) -> None:
        """End the connection."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self, address: str | None) -> None:
        """Serve, and connect again whenever the connection ends, until cancelled."""
        async for _ in Attempts():
            try:
                async with _RelayedBus.connect(address, name="sbus-store other hosts") as bus:
                    self._bus = bus
                    self._serving = asyncio.ensure_future(bus.serve_relayed(self._calls, lambda: None))
                    try:
                        await asyncio.shield(self._serving)
                    finally:
                        self._serving.cancel()
                        await asyncio.wait([self._serving])
                        self._bus = self._serving = None
            except RemoteRefusal as refusal:
                self._report(f"the bus does not let the store serve other hosts: {refusal}; see OTHER HOSTS in sbus-store(8)")
                await asyncio.sleep(REFUSED_SECONDS)
            except (SbusError, OSError):
                pass  # the connections for users report a bus that is away
