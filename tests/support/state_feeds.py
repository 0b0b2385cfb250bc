"""A feed of the state of an imitated service, in this process, with what it publishes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from sbus_services.feeds.dbus.changes import ChangeTable
from sbus_services.feeds.dbus.connection import cancel
from sbus_services.feeds.dbus.state_feed import StateCounters, StateFeed, StateSource
from tests.support.dbus_services import DBusDaemon, DBusService
from tests.support.feed_outputs import WAIT_SECONDS, RecordingOutput

Service = TypeVar("Service", bound=DBusService)


class RunningFeed(Generic[Service]):
    """A feed from the D-Bus bus *daemon*; :meth:`begin` starts it, :meth:`end` ends it and :attr:`service`."""

    def __init__(self, daemon: DBusDaemon, make_source: Callable[[ChangeTable, StateCounters], StateSource]) -> None:
        self.daemon = daemon
        self.table = ChangeTable()
        self.counters = StateCounters()
        self.output = RecordingOutput()
        self.said: list[str] = []
        self.ready: list[str] = []
        self.service: Service
        source = make_source(self.table, self.counters)
        self._end = f"{source.prefix}snapshot/end"
        self.feed = StateFeed(
            source,
            self.table,
            self.counters,
            self.output,
            address=daemon.address,
            log=self.said.append,
            ready=self.ready.append,
            rate=100_000,
        )
        self._task: asyncio.Future[None] | None = None

    async def begin(self) -> None:
        """Start the feed, and wait for its first snapshot."""
        self._task = task = asyncio.ensure_future(self.feed.run())
        task.add_done_callback(lambda _: self.output.arrival.set())
        await self.output.wait_for(lambda: self.output.events_of(self._end) or task.done())
        self.check()

    def check(self) -> None:
        """Fail if the feed has ended."""
        assert self._task is not None
        if self._task.done():
            self._task.result()

    async def end(self) -> None:
        """End the feed; it must have run until now."""
        try:
            self.check()
        finally:
            assert self._task is not None
            await cancel(self._task)
            self.service.close()

    async def has(self, key: str, **values: object) -> None:
        """Wait until the last message to *key* has these values."""
        await self.output.wait_for(lambda: self.output.last(key).items() >= values.items())


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the coroutine of a test."""
    asyncio.run(asyncio.wait_for(test(), 4 * WAIT_SECONDS))
