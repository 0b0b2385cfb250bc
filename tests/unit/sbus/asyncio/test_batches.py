"""The asyncio bus with one that sends batches: what is taken apart, and what that costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sbus import AsyncBus, Closed, Disconnected, Gap, Item, Message, Overflow, RemoteRefusal, TimedOut
from sbus.incoming import MessageRun
from tests.unit.sbus.conftest import WAIT_SECONDS, FakeBus

MESSAGES = [Message(b"a", b"%d" % number) for number in range(200)]

PACKETS = [b"MSG a\0" + message.payload for message in MESSAGES]


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))


def test_iteration_takes_a_batch_apart_once_and_waits_once(fake: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes ``async for`` cost no more than a callback would: of all that is done for a message only its own step is left."""
    opened: list[int] = []
    messages = MessageRun.messages

    def open_noted(run: MessageRun) -> list[Message]:
        opened.append(run.count)
        return messages(run)

    monkeypatch.setattr(MessageRun, "messages", open_noted)

    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            waits: list[int] = []
            receive = bus._link.receive

            async def counted(*arguments: Any) -> Item:
                waits.append(1)
                return await receive(*arguments)

            monkeypatch.setattr(bus._link, "receive", counted)
            peer = fake.peer()
            for _ in range(5):
                peer.say_together(*PACKETS)
            seen: list[Item] = []
            async for item in sub:
                seen.append(item)
                if len(seen) == 5 * len(MESSAGES):
                    break
            assert seen == MESSAGES * 5
            assert opened == [len(MESSAGES)] * 5
            assert len(waits) <= 5

    run(main)


def test_an_unread_batch_is_not_split(fake: FakeBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(MessageRun, "messages")

    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            fake.peer().say_together(*PACKETS)
            await bus.ping()
            assert bus.statistics.delivered == len(MESSAGES)
            assert len(sub._inbox) == len(MESSAGES)

    run(main)


def test_a_batch_is_taken_apart_in_order_with_what_is_between(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            fake.peer().say_together(b"MSG a\x001", b"MSG a\x002", b"CMSG !/bus/lost\x003", b"MSG a\x004")
            assert await sub.receive_many() == [Message(b"a", b"1"), Message(b"a", b"2"), Gap(3), Message(b"a", b"4")]
            assert bus.statistics.batches_received == 1

    run(main)


def test_what_is_left_of_a_batch_is_still_there(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            fake.peer().say_together(*PACKETS[:7])
            seen: list[Item] = []
            async for item in sub:
                seen.append(item)
                if len(seen) == 2:
                    break
            seen.append(await sub.receive(0))
            seen += await sub.receive_many(2, 0)
            seen.append(await anext(sub))
            await bus.close()
            seen += await sub.receive_many()
            assert seen == MESSAGES[:7]
            with pytest.raises(Closed):
                await sub.receive()

    run(main)


def test_lists_come_as_what_waits(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus:
            later = bus.subscribe("b")
            with pytest.raises(RuntimeError, match="'async with' or 'await'"):
                await later.receive_many()
            async with bus.subscribe("a") as sub:
                peer = fake.peer()
                peer.say_together(*PACKETS[:3])
                lists = sub.batches(2)
                assert await anext(lists) == MESSAGES[:2]
                assert await anext(lists) == MESSAGES[2:3]
                peer.say(PACKETS[3])
                assert await anext(lists) == MESSAGES[3:4]
                with pytest.raises(ValueError, match="at least 1"):
                    await sub.receive_many(0)
                with pytest.raises(TimedOut):
                    await sub.receive_many(timeout=0)
                await sub.close()
                assert [items async for items in lists] == []

    run(main)


def test_a_full_queue_stops_the_reading_and_lists_make_it_go_on(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address, queue_packets=3) as bus, bus.subscribe("a") as sub:
            peer = fake.peer()
            for start in range(0, 200, 5):
                peer.say_together(*PACKETS[start : start + 5])
            seen: list[Item] = []
            while len(seen) < len(MESSAGES):
                seen += await sub.receive_many(4)
            assert seen == MESSAGES
            assert not bus._link.is_paused

    run(main)


def test_with_discard_a_batch_meets_the_bounds_as_its_messages_would_alone(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address, queue_packets=3, overflow=Overflow.DISCARD) as bus, bus.subscribe("a") as sub:
            fake.peer().say_together(*PACKETS[:5])
            await bus.ping()
            assert await sub.receive_many() == [*MESSAGES[:3], Gap(2)]
            assert bus.statistics.lost_local == 2

    run(main)


def test_a_refusal_is_reported_before_the_rest_of_a_batch_is_read(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            peer = fake.peer()
            peer.say_together(*PACKETS[:2])
            assert await anext(sub) == MESSAGES[0]
            peer.say(b"CMSG !/bus/error\0EPERM no")
            await bus.publish("b")  # so that the error precedes the call's own barrier
            await bus.control("!/bus/stats", "")
            refused: list[RemoteRefusal] = []
            bus.on_refused = refused.append
            assert await anext(sub) == MESSAGES[1]
            assert len(refused) == 1

    run(main)


def test_a_malformed_batch_ends_the_connection_behind_what_was_good_of_it(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            fake.peer().say(b"CMSG !/batch\0\7\0\0\0MSG a\x000\xff")
            assert await sub.receive() == MESSAGES[0]
            with pytest.raises(Disconnected, match="the bus sent a malformed batch: 1 bytes left for a length"):
                await sub.receive()

    run(main)


def test_a_program_makes_no_batches_of_its_own(batching: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(batching.address) as bus:
            for send in (bus.control, bus.tell):
                with pytest.raises(ValueError, match="coalesce"):
                    await send("!/batch", b"\1\0\0\0x")

    run(main)
