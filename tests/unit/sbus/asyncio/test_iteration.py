"""``async for``, by the compiled iterator and by the plain one: the same items, in the same order, and the same ends."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from sbus import AsyncBus, AsyncSubscription, Gap, Item, Message, RemoteRefusal
from sbus.asyncio import iteration as iteration_module
from tests.support.skips import require
from tests.unit.sbus.conftest import WAIT_SECONDS, FakeBus

MESSAGES = [Message(b"a", b"%d" % number) for number in range(20)]

PACKETS = [b"MSG a\0" + message.payload for message in MESSAGES]


@pytest.fixture(params=["plain", "compiled"], autouse=True)
def iteration(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(iteration_module, "make_taker", None)
    else:
        require(iteration_module.make_taker is not None, "needs the extensions: make build", could_run=True)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))


async def taken(sub: AsyncSubscription, count: int) -> list[Item]:
    """Return *count* items by one ``async for``."""
    items: list[Item] = []
    async for item in sub:
        items.append(item)
        if len(items) == count:
            break
    return items


def test_what_is_missing_has_its_place(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            peer = fake.peer()
            peer.say_together(*PACKETS[:2])
            peer.say(b"CMSG !/bus/lost\x002", PACKETS[2])
            items = sub.items()
            assert [await anext(items) for _ in range(4)] == [*MESSAGES[:2], Gap(2), MESSAGES[2]]
            await sub.close()
            assert [item async for item in items] == []

    run(main)


def test_messages_keep_their_order_across_all_boundaries(fake: FakeBus) -> None:
    async def main() -> None:
        missing: list[Item] = []
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a", on_gap=missing.append) as sub:
            peer = fake.peer()
            peer.say_together(*PACKETS[:10])
            peer.say(b"CMSG !/bus/lost\x002")
            peer.say_together(*PACKETS[10:])
            items = await taken(sub, 3)
            items.append(await anext(sub))
            items += await taken(sub, 8)
            items += await sub.receive_many(2)
            items += await taken(sub, 6)
            assert items == MESSAGES
            assert missing == [Gap(2)]

    run(main)


def test_it_ends_with_the_subscription_in_the_middle_of_a_batch(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            fake.peer().say_together(*PACKETS)
            items: list[Item] = []
            async for item in sub:
                items.append(item)
                if len(items) == 2:
                    await sub.close()
            assert items == MESSAGES[:2]
            assert [item async for item in sub] == []

    run(main)


@pytest.mark.parametrize("end", ["close", "drain", "unsubscribe"])
def test_it_ends_if_another_call_has_read_the_end(fake: FakeBus, end: str) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            await (bus.unsubscribe("a") if end == "unsubscribe" else getattr(sub, end)())
            await bus.ping()
            assert [item async for item in sub] == []

    run(main)


def test_a_refusal_comes_first(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            fake.peer().say_together(*PACKETS[:2], b"CMSG !/bus/error\0EPERM no")
            refused: list[RemoteRefusal] = []
            bus.on_refused = refused.append
            assert await taken(sub, 1) == MESSAGES[:1]
            assert len(refused) == 1
            assert await taken(sub, 1) == MESSAGES[1:2]

    run(main)


def test_it_must_have_begun(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus:
            with pytest.raises(RuntimeError, match="'async with' or 'await'"):
                await taken(bus.subscribe("a"), 1)

    run(main)


def test_a_cancelled_wait_loses_nothing(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            task = asyncio.ensure_future(taken(sub, 1))
            await asyncio.sleep(0)
            fake.peer().say_together(*PACKETS)
            bus._link._take_in()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await taken(sub, len(MESSAGES)) == MESSAGES

    run(main)


def test_items_come_where_an_error_is_being_handled(fake: FakeBus) -> None:
    """What is handled must not become part of how the item is handed over."""

    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            fake.peer().say_together(*PACKETS)
            try:
                int("x")
            except ValueError:
                assert await taken(sub, len(MESSAGES)) == MESSAGES

    run(main)


def test_items_come_where_a_debugger_looks_on(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            fake.peer().say_together(*PACKETS)
            await bus.ping()
            seen: list[str] = []
            before = sys.getprofile()
            sys.setprofile(lambda _frame, event, _argument: seen.append(event))
            try:
                items = await taken(sub, len(MESSAGES))
            finally:
                sys.setprofile(before)
            assert items == MESSAGES
            assert seen

    run(main)


def steps(awaitable: Any) -> Iterator[Any]:
    iterator: Iterator[Any] = awaitable.__await__()
    return iterator


def test_a_step_may_be_awaited_by_hand() -> None:
    if iteration_module.make_taker is None:
        return

    async def wait() -> Message:
        raise StopAsyncIteration

    ready = deque(MESSAGES[:2])
    taker = iteration_module.make_taker(ready, (), wait)
    with pytest.raises(StopIteration) as caught:
        next(steps(anext(taker)))
    assert caught.value.value == MESSAGES[0]
    assert list(ready) == MESSAGES[1:2]
