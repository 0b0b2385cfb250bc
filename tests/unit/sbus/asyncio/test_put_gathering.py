"""Messages that tasks put at the same time, also if tasks are eager: they run before the call that creates them returns."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from sbus import Closed, NewMessage, Put, StoreError
from sbus.asyncio.put_gathering import AsyncPutGathering
from sbus.store.requests import PutRequest


def eager(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Future[Any]:
    """Do as ``asyncio.eager_task_factory`` of Python 3.12, for coroutines that end without a wait."""
    try:
        waits_for = coroutine.send(None)
    except StopIteration as end:
        done = loop.create_future()
        done.set_result(end.value)
        return done

    async def rest() -> Any:
        await asyncio.wait([waits_for])
        return await coroutine

    waits_for._asyncio_future_blocking = False
    return asyncio.Task(rest(), loop=loop, **options)


@pytest.mark.parametrize("is_eager", [True, False])
def test_puts_after_one_that_failed_at_once(is_eager: bool) -> None:
    fails = True

    async def send(request: PutRequest) -> Sequence[Put | StoreError]:
        if fails:
            raise Closed("the bus")
        return [Put(1)] * request.count

    async def main() -> None:
        nonlocal fails
        if is_eager:
            factory: Any = getattr(asyncio, "eager_task_factory", eager)
            asyncio.get_running_loop().set_task_factory(factory)
        puts = AsyncPutGathering(send)
        for _ in range(2):
            with pytest.raises(Closed):
                await asyncio.wait_for(puts.put(NewMessage("a", "b")), 30)
        fails = False
        assert await puts.put(NewMessage("a", "b")) == Put(1)

    asyncio.run(main())
