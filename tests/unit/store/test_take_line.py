"""The line of calls that wait for jobs of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from sbusd.config.store import QueueSettings, StoreSettings, StreamSettings
from sbusd.config.users import ChargedUsers
from sbusd.store.engine.engine import Engine
from sbusd.store.engine.messages import JobPage, LeasedJob, NewMessage, Sender, Worker
from sbusd.store.engine.queues import MAX_PASSED
from sbusd.store.operation_queue import OperationQueue, QueuedOperation
from sbusd.store.take_line import TakeLine, Taken
from tests.support.store_clocks import OneClock

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
