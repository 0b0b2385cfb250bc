"""What an asyncio bus sends together, on a bus that takes batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sbus import AsyncBus, Disconnected, Message, PayloadTooLarge, Reconnected, RemoteRefusal, TimedOut
from sbus.asyncio.writer import TOGETHER_SECONDS
from sbus.outgoing import POSTED_BYTES
from tests.unit.sbus.conftest import WAIT_SECONDS, FakeBus, Peer


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))


async def asked(bus: AsyncBus) -> None:
    """Let *bus* learn that batches are taken."""
    async with bus.coalesce():
        await bus.ping()
    assert bus._session.outgoing.takes_batches
    bus._link.writer.clock = lambda: 1.0  # no time passes


def numbered(peer: Peer) -> list[int]:
    return [int(packet.partition(b"\0")[2]) for packet in peer.received if packet.startswith(b"MSG")]


def test_the_first_leaves_at_once_and_what_follows_it_closely_together(batching: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(batching.address) as bus:
            await asked(bus)
            peer = batching.peer()
            for number in range(100):
                await bus.publish("a", b"%d" % number)
            assert len(bus._session.outgoing) == 99
            await asyncio.sleep(0)
            assert not bus._session.outgoing
            bus._link.writer.clock = lambda: 1.0 + TOGETHER_SECONDS
            await bus.publish("a", b"100")
            assert not bus._session.outgoing, "a later packet does not wait"
            await bus.ping()
            assert numbered(peer) == list(range(101))
            assert peer.batches == [99]
            assert bus.statistics.batches_sent == 1

    run(main)


def test_tasks_that_publish_in_one_iteration_share_a_batch(batching: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(batching.address) as bus:
            await asked(bus)
            await asyncio.gather(*(bus.publish("a", b"%d" % number) for number in range(10)))
            await bus.ping()
            peer = batching.peer()
            assert numbered(peer) == list(range(10))
            assert peer.batches == [9]

    run(main)


def test_a_full_batch_leaves_within_the_iteration(batching: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(batching.address) as bus:
            await asked(bus)
            await bus.publish("a", b"")
            for number in range(10):
                await bus.publish("a", b"x" * (POSTED_BYTES // 10))
                assert bool(bus._session.outgoing) == (number < 9)

    run(main)


def test_what_waits_for_an_answer_sends_what_was_published_before(batching: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(batching.address) as bus, bus.subscribe("a") as sub:
            await asked(bus)
            peer = batching.peer()
            async with bus.coalesce():
                for number in range(3):
                    await bus.publish("a", b"%d" % number)
                assert numbered(peer) == []
                await bus.tell("echo/off")
                await bus.publish("a", b"3")
                await bus.ping()
                assert numbered(peer) == [0, 1, 2, 3]
                assert peer.received.index(b"CMSG echo/off") < peer.received.index(b"MSG a\x003")
                await bus.publish("a", b"4")
                await bus.flush()
                assert not bus._session.outgoing
            assert await sub.receive_many(2) == [Message(b"a", b"0"), Message(b"a", b"1")]

    run(main)


def test_what_is_gathered_leaves_in_time_by_itself(batching: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(batching.address) as bus, bus.subscribe("a") as sub:
            await asked(bus)
            async with bus.coalesce():
                await bus.publish("a", b"0")
                await bus.publish("a", b"1")
                assert len(bus._session.outgoing) == 2
                assert await sub.receive(WAIT_SECONDS) == Message(b"a", b"0")
                assert batching.peer().batches == [2]

    run(main)


def test_scopes_may_stand_in_each_other_and_errors_lose_nothing(batching: FakeBus) -> None:
    async def publish_and_fail(bus: AsyncBus) -> None:
        async with bus.coalesce():
            await bus.publish("a", b"0")
            async with bus.coalesce():
                await bus.publish("a", b"1")
            assert len(bus._session.outgoing) == 2
            raise ZeroDivisionError

    async def main() -> None:
        async with AsyncBus.connect(batching.address) as bus:
            await asked(bus)
            with pytest.raises(ZeroDivisionError):
                await publish_and_fail(bus)
            assert not bus._session.outgoing
            await bus.ping()
            assert numbered(batching.peer()) == [0, 1]

    run(main)


@pytest.mark.parametrize("batching_on", [True, False])
def test_without_batches_each_message_leaves_at_once(fake: FakeBus, batching_on: bool) -> None:
    """With a bus that does not know them, and with one that does but is not asked."""
    fake.takes_batches = not batching_on

    async def main() -> None:
        async with AsyncBus.connect(fake.address, batching=batching_on) as bus:
            await bus.publish("a", b"0")
            await bus.publish("a", b"1")
            await bus.ping()
            for number in range(2, 5):
                await bus.publish("a", b"%d" % number)
                assert not bus._session.outgoing
            await bus.ping()
            peer = fake.peer()
            assert numbered(peer) == list(range(5))
            assert peer.batches == []
            assert bus.statistics.batchless == int(batching_on)
            assert peer.received.count(b"CMSG !/bus/features") == int(batching_on)

    run(main)


def test_who_publishes_once_asks_nothing(batching: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(batching.address) as bus:
            await bus.publish("a", b"0")
            await bus.ping()
            assert b"CMSG !/bus/features" not in batching.peer().received

    run(main)


def test_while_the_socket_is_full_a_batch_waits_and_then_publishers_do(batching: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(batching.address) as bus:
            await asked(bus)
            peer = batching.peer()
            peer.gate.clear()
            count = 0
            while True:
                task = asyncio.ensure_future(bus.publish("a", b"%d" % count))
                await asyncio.sleep(0)
                if not task.done():
                    break
                count += 1
            assert bus._session.outgoing.posted_bytes >= POSTED_BYTES
            others = [asyncio.ensure_future(bus.publish("a", b"%d" % (count + each))) for each in (1, 2, 3)]
            await asyncio.sleep(0)
            others[1].cancel()
            bus._link.timeout = 0.0
            with pytest.raises(TimedOut):
                await bus.publish("a", b"-1")
            with pytest.raises(TimedOut, match="flushing"):
                await bus.flush()
            bus._link.timeout = WAIT_SECONDS
            peer.gate.set()
            await asyncio.gather(task, others[0], others[2])
            await bus.ping()
            assert numbered(peer) == [*range(count + 2), count + 3]
            assert not bus._link.writer.turns

    run(main)


def test_one_that_is_too_large_fails_alone(batching: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(batching.address) as bus:
            await asked(bus)
            limit = bus._session.outgoing.packet_limit
            first, large, last = await asyncio.gather(
                bus.publish("a", b"0"), bus.publish("a", b"x" * limit), bus.publish("a", b"1"), return_exceptions=True
            )
            assert (first, last) == (None, None)
            assert isinstance(large, PayloadTooLarge)
            await bus.ping()
            assert numbered(batching.peer()) == [0, 1]

    run(main)


def test_a_refusal_in_a_batch_does_not_affect_other_calls(batching: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(batching.address) as bus:
            await asked(bus)
            for key in ("a", "!/x", "b"):
                await bus.publish(key, "1")
            assert await bus.control("!/bus/stats", "{}") == b"{}"
            with pytest.raises(RemoteRefusal, match="EPERM !/x is reserved"):
                await bus.ping()

    run(main)


def test_closing_sends_what_was_published(batching: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(batching.address) as bus:
            await asked(bus)
            for number in range(5):
                await bus.publish("a", b"%d" % number)
            assert bus._session.outgoing
        assert bus.statistics.unsent == 0

    run(main)
    peer = batching.peer()
    peer.thread.join(WAIT_SECONDS)
    assert numbered(peer) == list(range(5))


def test_what_can_not_leave_any_more_is_counted(batching: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(batching.address) as bus, bus.subscribe("a") as sub:
            await asked(bus)
            async with bus.coalesce():
                for _ in range(3):
                    await bus.publish("b")
                batching.peer().hang_up()
                bus._link._take_in()
            with pytest.raises(Disconnected):
                await sub.receive()
            assert bus.statistics.unsent == 3

    run(main)


def test_what_was_taken_leaves_on_the_next_connection_behind_modes_and_patterns(batching: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(batching.address, reconnect=True) as bus, bus.subscribe("a") as sub:
            await asked(bus)
            await bus.tell("order/stack")
            async with bus.coalesce():
                await bus.publish("a", b"0")
                await bus.publish("a", b"1")
                batching.peer().hang_up()
                assert isinstance(await sub.receive(WAIT_SECONDS), Reconnected)
                assert [await sub.receive(), await sub.receive()] == [Message(b"a", b"0"), Message(b"a", b"1")]
            received = batching.peer().received
            assert received[:2] == [b"CMSG batch/on", b"CMSG order/stack"]
            assert received.index(b"SUB a") < received.index(b"MSG a\x000") < received.index(b"MSG a\x001")
            assert bus.statistics.unsent == 0

    run(main)


async def publish_for_ever(bus: AsyncBus) -> None:
    while True:
        await bus.publish("a", b"x" * 1_000)


def test_closing_a_bus_that_does_not_read_ends_in_time_and_counts(batching: FakeBus) -> None:
    async def main() -> None:
        bus = await AsyncBus.connect(batching.address)
        await asked(bus)
        peer = batching.peer()
        peer.gate.clear()
        bus._link.timeout = 0.0
        with pytest.raises(TimedOut):
            await publish_for_ever(bus)
        waiting = len(bus._session.outgoing)
        await bus.close()
        assert bus.statistics.unsent == waiting > 0
        peer.gate.set()

    run(main)
