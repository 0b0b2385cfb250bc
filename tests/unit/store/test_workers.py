"""The connections that hold leases: which one is still there after the store or the bus was away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from sbusd.broker.connection_times import date_of
from sbusd.client import AsyncBus
from sbusd.store.workers import Workers

CONNECTION = 7


class Events:
    """A subscription without messages."""

    async def receive(self) -> object:
        return await asyncio.Event().wait()


class FakeBus:
    """A bus with one connection, whose socket has *inode*."""

    def __init__(self, inode: int) -> None:
        self._described = {"id": CONNECTION, "inode": inode}
        self._since = time.clock_gettime(time.CLOCK_BOOTTIME)

    @asynccontextmanager
    async def subscribe(self, _pattern: bytes) -> AsyncIterator[Events]:
        yield Events()

    async def control(self, _key: bytes, _payload: bytes) -> bytes:
        return json.dumps({"connections": [self._described | {"since": date_of(self._since)}], "hidden": 0}).encode()

    def connection(self) -> AsyncBus:
        """Return a connection to it."""
        return cast(AsyncBus, self)


def test_a_worker_stays_when_the_wall_clock_is_set_and_not_when_another_connection_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        gone: list[int] = []
        bus, wall = FakeBus(1_000), time.time
        workers = Workers(lambda holder: gone.append(holder.connection))
        await workers.connected(bus.connection(), {})
        holder = await workers.admit(CONNECTION)
        for seconds in (0.002, 3_600.0, -3_600.0):
            await workers.disconnected()
            monkeypatch.setattr(time, "time", lambda seconds=seconds: wall() + seconds)
            await workers.connected(bus.connection(), {})
            assert gone == [], f"the wall clock was set by {seconds} s"
            assert await workers.admit(CONNECTION) is holder
        await workers.disconnected()
        after_restart = Workers(lambda holder: gone.append(holder.connection))
        await after_restart.connected(bus.connection(), {CONNECTION: holder.identity})
        assert gone == []
        await after_restart.disconnected()
        after_crash = FakeBus(1_001)
        await after_restart.connected(after_crash.connection(), {})
        assert gone == [CONNECTION]
        assert (await after_restart.admit(CONNECTION)).identity not in (0, holder.identity)
        await after_restart.disconnected()

    asyncio.run(asyncio.wait_for(main(), 60))
