"""Messages that wait for slow recipients: the packets of control between them, in both clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sbus import AsyncBus, Bus, Disconnected, SbusError, Unanswered, Unsupported
from sbus.features import Paced, Pacing
from sbus.outgoing import Outgoing
from tests.unit.sbus.conftest import WAIT_SECONDS, FakeBus, Peer

ON, OFF = b"CMSG pace/on", b"CMSG pace/off"


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))


def wire(peer: Peer) -> list[bytes]:
    """Return payloads of messages, and the packets of control about pacing."""
    return [packet.rpartition(b"\0")[2] for packet in peer.received if packet.startswith((b"MSG ", b"CMSG pace"))]


def questions(peer: Peer) -> int:
    return peer.received.count(b"CMSG !/bus/features")


MIXED = (False, True, True, True, False, False, True)
WIRED = [b"0", ON, b"1", b"2", b"3", OFF, b"4", b"5", ON, b"6"]
"""A run of messages of one kind needs one packet of control."""


def test_messages_that_wait_and_others_keep_their_order(pacing: FakeBus) -> None:
    with Bus.connect(pacing.address) as bus:
        for number, wait in enumerate(MIXED):
            bus.publish("a", b"%d" % number, wait=wait)
        bus.ping()
        peer = pacing.peer()
        assert wire(peer) == WIRED
        assert questions(peer) == 1


@pytest.mark.parametrize("takes_batches", [False, True])
def test_so_they_do_with_asyncio(pacing: FakeBus, takes_batches: bool) -> None:
    pacing.takes_batches = takes_batches

    async def main() -> None:
        async with AsyncBus.connect(pacing.address) as bus:
            for number, wait in enumerate(MIXED):
                await bus.publish("a", b"%d" % number, wait=wait)
            await bus.ping()
            assert wire(pacing.peer()) == WIRED

    run(main)


def test_tasks_that_publish_at_once_are_paced_each_as_it_asked(pacing: FakeBus) -> None:
    """While the socket is full, packets of both kinds wait for their turns."""

    async def main() -> None:
        async with AsyncBus.connect(pacing.address) as bus:
            await bus.publish("a", b"first", wait=True)
            peer = pacing.peer()
            peer.gate.clear()
            big = bytes(60_000)
            names = [b"%d%b" % (number, b"w" if number % 3 else b"p") for number in range(60)]
            tasks = [asyncio.create_task(bus.publish("a", big + b"\0" + name, wait=name.endswith(b"w"))) for name in names]
            await asyncio.sleep(0)
            assert not all(task.done() for task in tasks), "the socket was to be full"
            peer.gate.set()
            await asyncio.gather(*tasks)
            await bus.ping()
            seen = wire(peer)
            assert [name for name in seen if not name.startswith(b"CMSG")] == [b"first", *names]
            is_on = True
            for name in seen[seen.index(b"first") + 1 :]:
                if name.startswith(b"CMSG"):
                    is_on = name == ON
                else:
                    assert name.endswith(b"w" if is_on else b"p")

    run(main)


def test_coalesced_messages_are_paced_in_their_place(pacing: FakeBus) -> None:
    pacing.takes_batches = True
    with Bus.connect(pacing.address) as bus:
        bus._link.clock = lambda: 0.0
        with bus.coalesce():
            bus.ping()
            for number, wait in enumerate(MIXED[:1]):
                bus.publish("a", b"%d" % number, wait=wait)
            bus.publish("a", b"1", wait=True)
            bus.publish("a", b"2", wait=True)
            bus.publish("a", b"3")
        bus.ping()
        peer = pacing.peer()
        assert wire(peer) == [b"0", ON, b"1", b"2", OFF, b"3"]
        assert peer.batches, "it was to leave together"


def test_a_receipt_can_be_of_a_message_that_waits(pacing: FakeBus) -> None:
    with Bus.connect(pacing.address) as bus:
        with pytest.raises(Unanswered):
            bus.publish("a", b"0", receipt=True, wait=True)  # this bus gives no receipts
        received = pacing.peer().received
        assert received.index(ON) < received.index(b"MSG a\x000")
        assert OFF not in received


def test_a_paced_connection_says_so_once(pacing: FakeBus) -> None:
    with Bus.connect(pacing.address, pace=True) as bus:
        for number in range(5):
            bus.publish("a", b"%d" % number, wait=number % 2 == 0)
        bus.ping()
        assert wire(pacing.peer()) == [ON, b"0", b"1", b"2", b"3", b"4"]


def test_a_paced_connection_of_asyncio_says_so_once(pacing: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(pacing.address, pace=True) as bus:
            for number in range(5):
                await bus.publish("a", b"%d" % number, wait=number % 2 == 0)
            await bus.ping()
            assert wire(pacing.peer()) == [ON, b"0", b"1", b"2", b"3", b"4"]

    run(main)


@pytest.mark.parametrize("knows", ["nothing", "batches"])
def test_a_bus_without_pacing_is_an_error_before_anything_is_sent(fake: FakeBus, knows: str) -> None:
    fake.takes_batches = knows == "batches"
    with pytest.raises(Unsupported, match=r"does not support pacing; restart it with a newer sbusd, or publish without wait"):
        Bus.connect(fake.address, pace=True)
    peer = fake.peer()
    peer.thread.join(WAIT_SECONDS)
    assert not peer.thread.is_alive(), "the connection was to be closed"
    assert wire(peer) == []
    with Bus.connect(fake.address) as bus:
        with pytest.raises(Unsupported):
            bus.publish("a", b"0", wait=True)
        bus.publish("a", b"1")
        bus.ping()
        assert wire(fake.peer()) == [b"1"]


def test_a_bus_without_pacing_is_an_error_of_asyncio_too(fake: FakeBus) -> None:
    async def main() -> None:
        with pytest.raises(Unsupported):
            async with AsyncBus.connect(fake.address, pace=True):
                pass
        fake.peer()
        async with AsyncBus.connect(fake.address) as bus:
            with pytest.raises(Unsupported):
                await bus.publish("a", b"0", wait=True)
            await bus.publish("a", b"1")
            await bus.ping()
            assert wire(fake.peer()) == [b"1"]

    run(main)


def test_a_new_connection_is_paced_again(pacing: FakeBus) -> None:
    with Bus.connect(pacing.address, reconnect=True, pace=True) as bus:
        bus.publish("a", b"0")
        bus.ping()
        pacing.peer().hang_up()
        with pytest.raises(Disconnected):
            bus.ping()
        bus.publish("a", b"1")
        bus.ping()
        peer = pacing.peer()
        assert wire(peer) == [ON, b"1"]
        assert questions(peer) == 1


def test_a_new_connection_is_not_paced_until_a_message_waits(pacing: FakeBus) -> None:
    with Bus.connect(pacing.address, reconnect=True) as bus:
        bus.publish("a", b"0", wait=True)
        bus.ping()
        pacing.peer().hang_up()
        with pytest.raises(Disconnected):
            bus.ping()
        bus.publish("a", b"1")
        bus.publish("a", b"2", wait=True)
        bus.ping()
        assert wire(pacing.peer()) == [b"1", ON, b"2"]


def test_a_new_bus_without_pacing_ends_the_connection_for_good(pacing: FakeBus) -> None:
    with Bus.connect(pacing.address, reconnect=True, pace=True) as bus:
        bus.publish("a", b"0")
        bus.ping()
        pacing.knows_pacing = False
        pacing.peer().hang_up()
        errors: list[SbusError] = []
        for _ in range(3):
            with pytest.raises(Disconnected) as caught:
                bus.publish("a", b"1", receipt=True)
            errors.append(caught.value)
        assert "does not support pacing" in str(errors[-1])
        assert b"1" not in wire(pacing.peer())


def test_a_new_bus_without_pacing_ends_the_connection_of_asyncio(pacing: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(pacing.address, reconnect=True, pace=True) as bus:
            await bus.publish("a", b"0")
            await bus.ping()
            pacing.knows_pacing = False
            pacing.peer().hang_up()
            words = ""
            while "does not support pacing" not in words:
                with pytest.raises(Disconnected) as caught:
                    await bus.ping()
                words = str(caught.value)
                await asyncio.sleep(0)

    run(main)


def test_a_mode_that_the_program_sets_itself_counts(pacing: FakeBus) -> None:
    with Bus.connect(pacing.address) as bus:
        bus.tell("pace/on")
        bus.publish("a", b"0")
        bus.publish("a", b"1", wait=True)
        bus.tell("pace/off")
        bus.publish("a", b"2")
        bus.ping()
        assert wire(pacing.peer()) == [ON, b"0", b"1", OFF, b"2"]


def test_coalesced_messages_of_an_ended_connection_are_paced_on_the_next() -> None:
    outgoing = Outgoing(1 << 16)
    pacing = Pacing(outgoing)
    for packet in (b"MSG a\x000", Paced(b"MSG a\x001"), b"MSG a\x002"):
        pacing.prepare(packet)
        outgoing.post(packet)
    pacing.disconnected()
    pacing.restore(outgoing.set_aside())
    assert list(outgoing) == [b"MSG a\x000", ON, b"MSG a\x001", OFF, b"MSG a\x002"]
