"""Publishing to one connection alone, by a client of either kind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sbus import AsyncBus, Bus, Message, PayloadTooLarge, ProtocolError, RemoteRefusal
from sbus.direct_messages import direct_publication
from sbus.features import Paced
from sbus.protocol.errors import ErrorCode
from sbus.protocol.packets import MAX_PACKET_BYTES, error_packet
from sbus.vouching import vouched_publication
from tests.support.minibus import BusConnection, MiniBus
from tests.support.vouched_messages import publish_vouched
from tests.unit.sbus.conftest import WAIT_SECONDS, FakeBus
from tests.unit.sbus.test_vouching import ORIGIN, wait_for

PACKET = b"MSG a/b\0hi"


def test_the_packet_has_the_recipient_and_the_message() -> None:
    assert direct_publication(12, PACKET) == b"CMSG !/to/12\0" + PACKET
    vouched = vouched_publication(ORIGIN, "a/b", "hi")
    assert vouched_publication(ORIGIN, "a/b", "hi", to=12) == b"CMSG !/to/12\0" + vouched


@pytest.mark.parametrize("to", [0, -1, 10**18])
def test_a_number_that_no_connection_has_is_not_sent(to: int) -> None:
    for _ in range(2):
        with pytest.raises(ProtocolError, match="number of the recipient"):
            direct_publication(to, PACKET)


@pytest.mark.parametrize("to", ["12", b"12", 12.0, True])
def test_what_is_no_number_is_named(fake: FakeBus, to: Any) -> None:
    with Bus.connect(fake.address) as bus, pytest.raises(TypeError, match="to must be the number of a connection"):
        bus.publish("a", to=to)


def test_the_recipient_counts_for_the_size() -> None:
    most = MAX_PACKET_BYTES - len(b"CMSG !/to/12\0MSG a\0")
    assert len(direct_publication(12, b"MSG a\0" + bytes(most))) == MAX_PACKET_BYTES
    with pytest.raises(PayloadTooLarge):
        direct_publication(12, b"MSG a\0" + bytes(most + 1))


def test_a_direct_message_keeps_its_place_among_the_others(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus:
        bus.publish("a", "1")
        bus.publish("a/b", "hi", to=12)
        publish_vouched(bus, ORIGIN, "a/b", "hi", to=12)
        bus.publish("a", "2")
        bus.ping()
        vouched = b"CMSG !/to/12\0CMSG !/from/" + ORIGIN + b"\0" + PACKET
        wait_for(fake.peer(), [b"MSG a\x001", b"CMSG !/to/12\0" + PACKET, vouched, b"MSG a\x002"])


def test_the_same_on_asyncio(fake: FakeBus) -> None:
    async def main() -> None:
        async with AsyncBus.connect(fake.address) as bus:
            await bus.publish("a", "1")
            await bus.publish("a/b", "hi", to=12)
            await bus.ping()

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))
    wait_for(fake.peer(), [b"MSG a\x001", b"CMSG !/to/12\0" + PACKET])


def test_it_can_be_gathered_and_paced(batching: FakeBus) -> None:
    batching.knows_pacing = True
    with Bus.connect(batching.address) as bus:
        bus.ping()
        with bus.coalesce():
            for _ in range(3):
                bus.publish("a/b", "hi", to=12, wait=True)
            bus.publish("a/b", "hi", to=12)
        direct = b"CMSG !/to/12\0" + PACKET
        wait_for(batching.peer(), [b"CMSG pace/on", direct, direct, direct, b"CMSG pace/off", direct])
    assert isinstance(Paced(direct_publication(12, PACKET)), bytes)


def test_its_receipt_has_the_one_recipient_or_none(mini_bus: MiniBus) -> None:
    with (
        Bus.connect(mini_bus.address) as store,
        Bus.connect(mini_bus.address) as reader,
        Bus.connect(mini_bus.address) as other,
        reader.subscribe("a/") as found,
        other.subscribe("a/") as not_found,
    ):
        number = int(reader.address.split("/")[2])
        assert store.publish("a/b", "1", to=number, receipt=True) == 1
        assert store.publish("b", "2", to=number, receipt=True) == 0
        assert store.publish("a/b", "3", to=999, receipt=True) == 0
        assert store.publish("a/b", "4", receipt=True) == 2
        assert [found.receive(WAIT_SECONDS) for _ in range(2)] == [Message(b"a/b", b"1"), Message(b"a/b", b"4")]
        assert not_found.receive(WAIT_SECONDS) == Message(b"a/b", b"4")


def test_a_refusal_is_raised_with_a_receipt_and_reported_without_one(mini_bus: MiniBus) -> None:
    """The bus still has the receipt for the next message. That receipt is not mistaken for the one of a later message."""

    def refuse(connection: BusConnection, packet: bytes) -> bool:
        is_direct = packet.startswith(b"CMSG !/to/")
        if is_direct:
            connection.say(error_packet(ErrorCode.EPERM, "only users with the deliver right"))
        return is_direct

    mini_bus.before = refuse
    with Bus.connect(mini_bus.address) as bus, bus.subscribe("a") as found:
        refused: list[RemoteRefusal] = []
        bus.on_refused = refused.append
        with pytest.raises(RemoteRefusal, match="deliver right"):
            bus.publish("a", "1", to=12, receipt=True)
        bus.publish("a", "2")
        assert bus.publish("b", "3", receipt=True) == 0
        bus.publish("a", "4", to=12)
        assert found.receive(WAIT_SECONDS) == Message(b"a", b"2")
        with pytest.raises(RemoteRefusal, match="deliver right"):
            bus.ping()
        assert refused == []
