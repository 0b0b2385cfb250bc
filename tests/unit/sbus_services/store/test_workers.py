"""The connections that hold leases: which one is still there after the store or the bus was away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from sbus import AsyncBus
from sbus_programs.config.store import QueueSettings, StoreSettings, StreamSettings
from sbus_programs.config.users import ChargedUsers
from sbus_services.store.engine.engine import Engine
from sbus_services.store.engine.messages import JobPage, LeasedJob, NewMessage, Sender, Worker
from sbus_services.store.engine.queues import MAX_PASSED
from sbus_services.store.operation_queue import OperationQueue, QueuedOperation
from sbus_services.store.workers import TakeLine, Taken, Workers
from sbusd.broker.connection_times import date_of
from tests.support.store_clocks import OneClock

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


JOBS = 20_000
SETTINGS = StoreSettings(streams=(StreamSettings("mail", ("mail/",)),), queues=(QueueSettings("mail", "mail"),))
ALICE, BOB = 1000, 1001


class OneTransaction:
    """A committer that performs each operation at once, in a transaction that is never committed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.begin()

    def submit(self, operations: Sequence[QueuedOperation[Engine]], finished: Callable[[Sequence[QueuedOperation[Engine]]], None]) -> None:
        for each in operations:
            each.result = each.perform(self._engine)
        finished(operations)


def with_useless_jobs(path: Path, change: str) -> Engine:
    """Return an engine whose queue has jobs of which no worker gets any, after *change* of their messages."""
    engine = Engine(path, SETTINGS, OneClock(lambda: 1), 0)
    engine.put_many("mail", [NewMessage(b"mail/a", b"", Sender(ALICE, ALICE, 7)) for _ in range(JOBS)])
    with engine.database.operation():
        engine.database.execute(f"UPDATE message SET {change}")
    return engine


def test_a_call_that_does_not_wait_is_answered_behind_calls_that_do() -> None:
    async def main() -> None:
        line: TakeLine = TakeLine(ChargedUsers())

        def begin(done: Taken) -> None:
            operation: QueuedOperation[None] = QueuedOperation(lambda _: [], done)
            operation.result = JobPage([])
            asyncio.get_running_loop().call_soon(done, operation)

        def take(wait: float) -> asyncio.Future[Sequence[LeasedJob]]:
            return asyncio.ensure_future(line.take(7, begin, list, wait))

        waiting = [take(3_600) for _ in range(3)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(take(0), 60) == ()
        assert not any(each.done() for each in waiting)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize("change", ["crc = crc + 1", "crc = NULL, expires = 1"], ids=["damaged", "expired"])
def test_useless_jobs_are_passed_over_in_turns_with_other_users(tmp_path: Path, change: str) -> None:
    engine = with_useless_jobs(tmp_path / "store.sqlite", change)

    async def main() -> None:
        line = TakeLine(ChargedUsers())
        operations: OperationQueue[Engine] = OperationQueue(OneTransaction(engine), ChargedUsers())
        performed: list[tuple[int, int]] = []

        def take(uid: int) -> asyncio.Future[Sequence[LeasedJob]]:
            def perform(engine: Engine) -> JobPage:
                before = engine.ready("mail")
                page = engine.take("mail", Worker(uid, uid), 1, 1_000)
                performed.append((uid, before - engine.ready("mail")))
                return page

            return asyncio.ensure_future(line.take(uid, lambda done: operations.submit(uid, perform, done), list, 0))

        takes = [take(ALICE), take(BOB)]
        await asyncio.wait_for(operations.run(BOB, lambda _: performed.append((BOB, 0))), 60)
        assert performed.index((BOB, 0)) <= 2, "a request of another user waits for the whole queue"
        assert await asyncio.wait_for(asyncio.gather(*takes), 300) == [(), ()]
        assert sum(passed for _, passed in performed) == JOBS
        assert max(passed for _, passed in performed) <= 1 + MAX_PASSED
        users = [uid for uid, passed in performed if passed]
        assert all(one != other for one, other in pairwise(users)), "the takes of a user follow each other"

    try:
        asyncio.run(main())
    finally:
        engine.rollback()
        engine.close()
