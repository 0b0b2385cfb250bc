"""Publishing in the name of others, by a client of either kind."""

from __future__ import annotations

import time

import pytest

from sbus import Bus, PayloadTooLarge, ProtocolError
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus.vouching import vouched_publication
from tests.support.vouched_messages import publish_vouched
from tests.unit.sbus.conftest import WAIT_SECONDS, FakeBus, Peer

ORIGIN = b"!/host/alpha/!/cred/1000/1000/19211"
PACKET = b"CMSG !/from/" + ORIGIN + b"\0MSG a/b\0hi"


def wait_for(peer: Peer, packets: list[bytes]) -> None:
    """Wait until the bus has received *packets*, besides questions of the client."""
    end = time.monotonic() + WAIT_SECONDS
    while [packet for packet in peer.received if not packet.startswith(b"CMSG !/bus/")] != packets:
        assert time.monotonic() < end, peer.received
        time.sleep(0.001)


def test_the_packet_has_the_origin_and_the_message() -> None:
    assert vouched_publication(ORIGIN, "a/b", "hi") == PACKET
    assert vouched_publication(ORIGIN, b"k" * 5_000, b"") == b"CMSG !/from/" + ORIGIN + b"\0MSG " + b"k" * 5_000 + b"\0"


@pytest.mark.parametrize("origin", [b"", b"!/cred/0/0/1", b"x", b"x" * 600 + b"/!/cred/1/2/3"])
def test_a_malformed_origin_is_not_sent(origin: bytes) -> None:
    for _ in range(2):
        with pytest.raises(ProtocolError):
            vouched_publication(origin, "a")


def test_the_origin_counts_for_the_size() -> None:
    most = MAX_PACKET_BYTES - len(vouched_publication(ORIGIN, "a"))
    assert len(vouched_publication(ORIGIN, "a", bytes(most))) == MAX_PACKET_BYTES
    with pytest.raises(PayloadTooLarge):
        vouched_publication(ORIGIN, "a", bytes(most + 1))


def test_a_message_keeps_its_place_among_the_clients_own(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus:
        bus.publish("a", "1")
        publish_vouched(bus, ORIGIN, "a/b", "hi")
        bus.report_lost(["a/*"], 2)
        bus.publish("a", "2")
        bus.ping()
        wait_for(fake.peer(), [b"MSG a\x001", PACKET, b"CMSG lost/for\x002\0a/*", b"MSG a\x002"])


def test_they_are_gathered_into_batches(batching: FakeBus) -> None:
    with Bus.connect(batching.address) as bus:
        bus._link.clock = lambda: 0.0
        with bus.coalesce():
            bus.ping()
            for _ in range(5):
                publish_vouched(bus, ORIGIN, "a/b", "hi")
        peer = batching.peer()
        wait_for(peer, [PACKET] * 5)
        assert sum(peer.batches) == 5
