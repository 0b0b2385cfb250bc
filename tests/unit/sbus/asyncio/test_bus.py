"""The asyncio bus against one that does as the test says."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sbus import (
    AsyncBus,
    AsyncSubscription,
    Closed,
    Disconnected,
    Gap,
    Message,
    NoBus,
    Overflow,
    PayloadTooLarge,
    Reconnected,
    RemoteRefusal,
    TimedOut,
    Unanswered,
)
from sbus.asyncio.link import _TURN_PACKETS
from sbus.items import Item
from tests.unit.sbus.conftest import WAIT_SECONDS, WHOAMI, FakeBus


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run *main* in a loop of its own; a leftover task, or an error that was never retrieved, fails the test."""
    errors: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        await asyncio.wait_for(main(), WAIT_SECONDS)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(watched())
    assert not errors


async def fill(bus: AsyncBus) -> int:
    """Publish until the socket is full, and return how many packets it took."""
    for count in itertools.count():
        if bus._link.writer.turns:
            raise AssertionError("a task waits already")
        task = asyncio.ensure_future(bus.publish("fill", b"%d" % count))
        await asyncio.sleep(0)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
            return count
    raise AssertionError


async def started(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Return *call* as a task that has run up to its first wait."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def published(received: list[bytes]) -> list[bytes]:
    return [packet.partition(b"\0")[2] for packet in received if packet.startswith(b"MSG")]


def test_the_life_of_a_client(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus:
            assert await bus.whoami() == WHOAMI.decode()
            async with bus.subscribe("a/*/c", b"net/") as sub:
                await bus.publish("a/b/c", "é")
                await bus.publish(b"else")
                await bus.publish(b"net/x", b"\0\xff")
                assert await sub.receive(WAIT_SECONDS) == Message(b"a/b/c", "é".encode())
                assert await sub.receive() == Message(b"net/x", b"\0\xff")
            assert await bus.ping() > 0
            assert bus.fileno() > 2
            assert await bus.control("!/bus/stats", "{}") == b"{}"
            with pytest.raises(Unanswered):
                await bus.control("echo/off")
            await bus.tell("echo/off")
            await bus.ping()
        with pytest.raises(Closed):
            await bus.publish("a")
        with pytest.raises(Closed):
            bus.fileno()
        await bus.close()

    run(main)
    peer = fake.peer()
    assert [packet for packet in peer.received if b"SUB" in packet] == [b"SUB a/*/c", b"SUB net/", b"UNSUB a/*/c", b"UNSUB net/"]
    assert peer.received.count(b"CMSG echo/off") == 2


def test_awaiting_in_place_of_with(fake: FakeBus) -> None:
    async def main() -> None:
        bus = await AsyncBus.connect(fake.address)
        sub = await bus.subscribe("a")
        async with bus, sub:
            await bus.publish("a", "1")
            assert await sub.receive() == Message(b"a", b"1")
            later = bus.subscribe("b")
            with pytest.raises(RuntimeError, match="'async with' or 'await'"):
                await later.receive()

    run(main)
    assert fake.peer().received.count(b"SUB a") == 1


def test_iteration_in_order_over_several_batches(fake: FakeBus) -> None:
    count = _TURN_PACKETS * 3 + 1

    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            for number in range(count):
                await bus.publish("a", b"%d" % number)
            seen: list[Item] = []
            async for item in sub:
                seen.append(item)
                if len(seen) == count:
                    await sub.close()
            assert seen == [Message(b"a", b"%d" % number) for number in range(count)]

    run(main)


def test_gaps_are_in_place(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            fake.peer().say(b"MSG a\0001", b"CMSG !/bus/lost\0007", b"MSG a\0002", b"CMSG !/bus/lost\0001")
            assert [await sub.receive() for _ in range(4)] == [Message(b"a", b"1"), Gap(7), Message(b"a", b"2"), Gap(1)]

    run(main)


def test_closing_ends_every_wait(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus:
            peer = fake.peer()
            one, two = await bus.subscribe("a"), await bus.subscribe("b")
            iterating = await started(anext_or_none(one))
            receiving = await started(two.receive())
            await bus.unsubscribe("b")
            with pytest.raises(Closed, match="the subscription"):
                await receiving
            peer.gate.clear()
            pinging = await started(bus.ping())
            await bus.close()
            assert await iterating is None
            with pytest.raises(Closed, match="the bus"):
                await pinging

    run(main)


async def anext_or_none(sub: AsyncSubscription) -> Item | None:
    async for item in sub:
        return item
    return None


def test_refusals(fake: FakeBus) -> None:
    fake.refusals[b"!/x"] = b"EPERM reserved"
    refused: list[RemoteRefusal] = []

    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus:
            with pytest.raises(RemoteRefusal, match="SUB '!/x': EPERM reserved"):
                await bus.subscribe("a", "!/x", "b")
            await bus.ping()
            assert fake.peer().patterns == []
            async with bus.subscribe("a") as sub:
                bus.on_refused = refused.append
                receiving = await started(sub.receive())
                await bus.publish("!/event/x")
                await bus.whoami()
                await bus.publish("a")
                assert await receiving == Message(b"a", b"")
                assert [str(refusal) for refusal in refused] == ["the bus refused a packet: EPERM !/event/x is reserved"]
                await bus.publish("!/event/x")
                with pytest.raises(RemoteRefusal):
                    await bus.ping()

    run(main)


def test_a_cancelled_calls_answer_is_never_given_to_another(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus:
            peer = fake.peer()
            peer.gate.clear()
            for number in range(3):
                await cancel(await started(bus.control("!/bus/stats", b"late %d" % number)))
            calls = [await started(bus.control("!/bus/stats", b"mine %d" % number)) for number in range(3)]
            await cancel(calls.pop(1))
            peer.gate.set()
            assert await asyncio.gather(*calls) == [b"mine 0", b"mine 2"]
            assert await bus.control("!/bus/stats", b"next") == b"next"

    run(main)


def test_the_late_response_of_a_timed_out_call_is_discarded(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus:
            peer = fake.peer()
            peer.gate.clear()
            bus._link.timeout = 0.0
            with pytest.raises(TimedOut, match="the response to '!/bus/stats' took longer"):
                await bus.control("!/bus/stats", b"late")
            bus._link.timeout = WAIT_SECONDS
            peer.gate.set()
            assert await bus.control("!/bus/stats", b"mine") == b"mine"

    run(main)


def test_a_cancelled_subscribe_is_taken_back(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus:
            peer = fake.peer()
            peer.gate.clear()

            async def subscribe() -> None:
                await bus.subscribe("a", "b")

            await cancel(await started(subscribe()))
            peer.gate.set()
            await bus.ping()
            await bus.ping()
            assert peer.patterns == []
            assert [packet for packet in peer.received if b"SUB" in packet] == [b"SUB a", b"SUB b", b"UNSUB a", b"UNSUB b"]

    run(main)


def test_a_cancelled_receive_loses_nothing(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            receiving = await started(sub.receive())
            waiting = await started(sub.receive())
            fake.peer().say(b"MSG a\0001")
            bus._link._take_in()  # wakes both, and neither has run
            await cancel(receiving)
            assert await waiting == Message(b"a", b"1")
            with pytest.raises(TimedOut):
                await sub.receive(0)

    run(main)


def test_publications_that_wait_go_in_order_without_the_cancelled(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus:
            peer = fake.peer()
            peer.gate.clear()
            count = await fill(bus)
            waiting = [await started(bus.publish("fill", b"w%d" % number)) for number in range(6)]
            pinging = await started(bus.ping())
            late = await started(bus.publish("fill", b"late"))
            await cancel(waiting[1])
            await cancel(waiting[4])
            peer.gate.set()
            await asyncio.gather(waiting[0], waiting[2], waiting[3], waiting[5], pinging, late)
            await bus.ping()
            assert published(peer.received) == [*(b"%d" % number for number in range(count)), b"w0", b"w2", b"w3", b"w5", b"late"]

    run(main)


def test_calls_that_are_given_up_on_a_full_socket_do_not_pile_up(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus:
            peer = fake.peer()
            peer.gate.clear()
            count = await fill(bus)
            bus._link.timeout = 0.0
            for _ in range(20):
                with pytest.raises(TimedOut):
                    await bus.ping()
                with pytest.raises(TimedOut):
                    await bus.publish("fill", "never")
            assert not bus._link.writer.turns
            assert len(bus._session.outgoing) == 1
            bus._link.timeout = WAIT_SECONDS
            peer.gate.set()
            await bus.ping()
            assert published(peer.received) == [b"%d" % number for number in range(count)]

    run(main)


def test_a_payload_too_large_for_the_socket(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus:
            with socket.socket(fileno=socket.dup(bus.fileno())) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
                limit = same.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - 32
            with pytest.raises(PayloadTooLarge) as caught:
                await bus.publish("k", b"x" * limit)
            assert (caught.value.size, caught.value.limit) == (limit + 6, limit)
            assert await bus.ping() > 0

    run(main)


def test_block_stops_reading_until_there_is_room(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address, queue_packets=2) as bus, bus.subscribe("slow") as slow, bus.subscribe("other") as other:
            fake.peer().say(*(b"MSG slow\0%d" % number for number in range(5)), b"MSG other\0x")
            waiting = await started(other.receive())
            pinging = await started(bus.ping())
            assert await slow.receive() == Message(b"slow", b"0")
            while not bus._link.is_paused:
                await asyncio.sleep(0)
            assert len(slow._inbox) == 2
            assert not waiting.done()
            assert [await slow.receive() for _ in range(4)] == [Message(b"slow", b"%d" % number) for number in range(1, 5)]
            assert await waiting == Message(b"other", b"x")
            assert await pinging > 0
            assert bus.statistics.lost_local == 0

    run(main)


def test_closing_a_full_subscription_lets_the_others_go_on(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address, queue_packets=1) as bus, bus.subscribe("other") as other:
            async with bus.subscribe("slow"):
                fake.peer().say(b"MSG slow\0", b"MSG slow\0", b"MSG other\0x")
                while not bus._link.is_paused:
                    await asyncio.sleep(0)
            assert await other.receive() == Message(b"other", b"x")

    run(main)


def test_a_cancelled_subscription_that_was_full_lets_the_others_go_on(fake: FakeBus) -> None:
    """Its confirmation comes after messages that fill it; without the connection being read again it would never come."""

    async def main() -> None:
        async with AsyncBus.connect(fake.address, queue_packets=1) as bus, bus.subscribe("other") as other:
            peer = fake.peer()
            peer.gate.clear()

            async def subscribe() -> None:
                await bus.subscribe("slow")

            subscribing = await started(subscribe())
            peer.say(b"MSG slow\0", b"MSG slow\0", b"MSG other\0x")
            while not bus._link.is_paused:
                await asyncio.sleep(0)
            subscribing.cancel()
            assert await other.receive(timeout=WAIT_SECONDS) == Message(b"other", b"x")
            peer.gate.set()
            await bus.ping()

    run(main)


def test_discard_goes_on_and_counts(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address, queue_packets=2, overflow=Overflow.DISCARD) as bus, bus.subscribe("a") as sub:
            fake.peer().say(*(b"MSG a\0%d" % number for number in range(5)))
            await bus.ping()
            assert [await sub.receive() for _ in range(3)] == [Message(b"a", b"0"), Message(b"a", b"1"), Gap(3)]
            assert bus.statistics.lost_local == 3

    run(main)


def test_the_end_and_its_reason(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            peer = fake.peer()
            peer.gate.clear()
            pinging = await started(bus.ping())
            peer.say(b"MSG a\0001", b"CMSG !/bus/error\0ENOBUFS queue is full")
            peer.hang_up()
            assert await sub.receive() == Message(b"a", b"1")
            for call in (sub.receive(), pinging, bus.publish("a"), bus.ping()):
                with pytest.raises(Disconnected, match="ENOBUFS queue is full"):
                    await call

    run(main)


def test_a_bus_that_speaks_nonsense_is_left(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus, bus.subscribe("a") as sub:
            fake.peer().say(b"HELLO world")
            with pytest.raises(Disconnected, match="HELLO"):
                await sub.receive()

    run(main)


def test_no_bus(fake: FakeBus) -> None:
    fake.stop_listening()

    async def main() -> None:
        with pytest.raises(NoBus, match="start the bus"):
            await AsyncBus.connect(fake.address)

    run(main)


def test_a_full_backlog_is_waited_for(fake: FakeBus) -> None:
    fake.stop_listening()

    async def main() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(fake.address)
            listener.listen(0)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
                first.connect(fake.address)
                with pytest.raises(NoBus, match="did not accept"):
                    await AsyncBus.connect(fake.address, timeout=0)
                connecting = await started(AsyncBus.connect(fake.address)._begun())
                listener.accept()[0].close()
                with await asyncio.to_thread(lambda: listener.accept()[0]) as accepted:
                    accepted.send(await asyncio.to_thread(accepted.recv, 1000))
                    await (await connecting).close()
        fake.path.unlink()

    run(main)
    fake.listen()


def test_reconnecting_subscribes_again_and_says_so(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address, reconnect=True) as bus, bus.subscribe("a/", "b") as one, bus.subscribe("c") as two:
            fake.stop_listening()
            peer = fake.peer()
            peer.gate.clear()
            asking = await started(bus.control("!/bus/stats", b"x"))
            peer.hang_up()
            with pytest.raises(Disconnected):
                await asking
            waiting = await started(bus.publish("a/x", "while away"))
            fake.listen()
            item = await one.receive()
            assert isinstance(item, Reconnected)
            await waiting
            assert await two.receive() == item
            assert await one.receive() == Message(b"a/x", b"while away")
            again = fake.peer()
            assert again.patterns == [b"a/", b"b", b"c"]
            assert await bus.control("!/bus/stats", b"y") == b"y"
            assert bus.statistics.reconnects == 1
            assert bus.statistics.reconnect_attempts == item.attempts

    run(main)


def test_a_subscription_that_is_refused_again_ends_it(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address, reconnect=True) as bus, bus.subscribe("a") as sub:
            fake.refusals[b"a"] = b"EACCES not any more"
            fake.peer().hang_up()
            assert isinstance(await sub.receive(), Reconnected)
            with pytest.raises(Disconnected, match="EACCES not any more"):
                await sub.receive()
            with pytest.raises(Disconnected, match="EACCES not any more"):
                await bus.publish("a")

    run(main)


def test_closing_ends_the_reconnecting(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address, reconnect=True) as bus, bus.subscribe("a") as sub:
            fake.stop_listening()
            fake.peer().hang_up()
            receiving = await started(sub.receive())
            waiting = await started(bus.publish("a"))
            while not bus.statistics.reconnect_attempts:
                await asyncio.sleep(0)
            await bus.close()
            for task in (receiving, waiting):
                with pytest.raises(Closed):
                    await task

    run(main)
