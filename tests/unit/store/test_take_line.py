"""The line of calls that wait for jobs of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sbusd.config.subordinate_ids import ChargedUsers
from sbusd.store.operation_queue import QueuedOperation
from sbusd.store.take_line import TakeLine, Taken


def test_a_call_that_does_not_wait_is_answered_behind_calls_that_do() -> None:
    async def main() -> None:
        line: TakeLine[int] = TakeLine(ChargedUsers())

        def begin(done: Taken) -> None:
            operation: QueuedOperation[None] = QueuedOperation(lambda _: [], done)
            operation.result = []
            asyncio.get_running_loop().call_soon(done, operation)

        def take(wait: float) -> asyncio.Future[Sequence[int]]:
            return asyncio.ensure_future(line.take(7, begin, list, wait))

        waiting = [take(3_600) for _ in range(3)]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(take(0), 60) == ()
        assert not any(each.done() for each in waiting)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(main())
