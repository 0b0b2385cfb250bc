"""What leaves together, in which order, and what becomes of it when the connection ends."""

from __future__ import annotations

import pytest

from sbus.errors import PayloadTooLarge
from sbus.outgoing import Outgoing
from sbus.protocol.packets import MAX_BATCH_BYTES, MAX_PACKET_BYTES, is_batch, join_batch, parse_batch


def make(*, takes_batches: bool | None = True, limit: int = MAX_PACKET_BYTES) -> Outgoing:
    outgoing = Outgoing(limit)
    outgoing.takes_batches = takes_batches
    return outgoing


def drained(outgoing: Outgoing) -> list[bytes]:
    """Return what is sent, packet by packet as the kernel gets it."""
    sent: list[bytes] = []
    while outgoing:
        sent.append(outgoing.head())
        outgoing.sent()
    assert outgoing.posted_bytes == len(outgoing) == 0
    return sent


def test_queued_packets_are_sent_in_one_batch_in_order() -> None:
    outgoing = make()
    outgoing.put(b"SUB a", b"CMSG !/bus/ping\x001")
    outgoing.post(b"MSG a\0x")
    outgoing.put(b"UNSUB a")
    assert list(outgoing) == [b"SUB a", b"CMSG !/bus/ping\x001", b"MSG a\0x", b"UNSUB a"]
    assert len(outgoing) == 4
    assert drained(outgoing) == [join_batch([b"SUB a", b"CMSG !/bus/ping\x001", b"MSG a\0x", b"UNSUB a"])]
    assert outgoing.batches == 1


def test_a_lone_packet_is_not_wrapped() -> None:
    outgoing = make()
    outgoing.post(b"MSG a\0x")
    assert drained(outgoing) == [b"MSG a\0x"]
    outgoing.put(b"SUB a")
    assert drained(outgoing) == [b"SUB a"]
    assert outgoing.batches == 0


@pytest.mark.parametrize("takes_batches", [False, None])
def test_no_batch_is_sent_to_a_bus_without_the_feature(takes_batches: bool | None) -> None:
    outgoing = make(takes_batches=takes_batches)
    outgoing.put(b"SUB a", b"SUB b")
    outgoing.post(b"MSG a\0x")
    outgoing.post(b"MSG a\0y")
    assert drained(outgoing) == [b"SUB a", b"SUB b", b"MSG a\0x", b"MSG a\0y"]


def test_the_first_packet_is_unchanged_until_it_is_sent() -> None:
    """The kernel refused it: packets that are added meanwhile are sent after it."""
    outgoing = make()
    outgoing.post(b"MSG a\0x")
    assert outgoing.head() == b"MSG a\0x"
    outgoing.post(b"MSG a\0y")
    outgoing.post(b"MSG a\0z")
    assert outgoing.head() == b"MSG a\0x"
    assert drained(outgoing) == [b"MSG a\0x", join_batch([b"MSG a\0y", b"MSG a\0z"])]


@pytest.mark.parametrize("limit", [MAX_PACKET_BYTES, 5_000])
def test_a_batch_keeps_its_size_limit_and_contains_everything(limit: int) -> None:
    outgoing = make(limit=limit)
    packets = [b"MSG %d\0" % number + b"x" * (number * 37 % 4_000) for number in range(200)]
    for number, packet in enumerate(packets):
        if number % 3:
            outgoing.post(packet)
        else:
            outgoing.put(packet)
    sent = drained(outgoing)
    assert max(map(len, sent)) <= min(limit, MAX_BATCH_BYTES)
    assert [each for packet in sent for each in (parse_batch(packet) if is_batch(packet) else [packet])] == packets
    assert outgoing.batches == sum(map(is_batch, sent)) < len(packets) // 2


def test_a_packet_longer_than_a_batch_is_sent_alone() -> None:
    outgoing = make()
    long = b"MSG a\0" + b"x" * MAX_BATCH_BYTES
    for packet in (b"MSG a\x001", b"MSG a\x002", long, b"MSG a\x003", b"MSG a\x004"):
        outgoing.post(packet)
    assert drained(outgoing) == [join_batch([b"MSG a\x001", b"MSG a\x002"]), long, join_batch([b"MSG a\x003", b"MSG a\x004"])]


def test_a_packet_too_large_for_the_connection_is_rejected_immediately() -> None:
    outgoing = make(limit=8)
    assert outgoing.fitting(b"12345678") == b"12345678"
    with pytest.raises(PayloadTooLarge) as caught:
        outgoing.fitting(b"123456789")
    assert (caught.value.size, caught.value.limit) == (9, 8)


def test_posts_are_kept_for_the_next_connection_and_packets_of_calls_are_not() -> None:
    outgoing = make()
    outgoing.post(b"MSG a\x001")
    outgoing.put(b"SUB a")
    outgoing.post(b"MSG a\x002")
    outgoing.head()
    outgoing.post(b"MSG a\x003")
    outgoing.disconnected(is_final=False)
    posts = outgoing.set_aside()
    assert posts == [b"MSG a\x001", b"MSG a\x002", b"MSG a\x003"]
    assert not outgoing
    outgoing.put(b"CMSG echo/off", b"SUB b")
    outgoing.restore(posts)
    assert list(outgoing) == [b"CMSG echo/off", b"SUB b", *posts]
    assert outgoing.unsent == 0


def test_posts_that_can_never_leave_are_counted() -> None:
    outgoing = make()
    outgoing.post(b"MSG a\x001")
    outgoing.put(b"SUB a")
    outgoing.post(b"MSG a\x002")
    outgoing.head()
    outgoing.disconnected(is_final=True)
    assert outgoing.unsent == 2
    assert not outgoing
    outgoing.packet_limit = 5
    outgoing.restore([b"MSG a\x003", b"12345"])
    assert outgoing.unsent == 3
    assert drained(outgoing) == [b"12345"]


def test_a_packet_that_was_sent_is_not_sent_again_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of a signal handler comes when send(2) has returned."""
    outgoing, sent = make(), []

    def send(packet: bytes, flags: int) -> int:
        sent.append((packet, flags))
        return len(packet)

    def interrupt(self: Outgoing) -> None:
        raise KeyboardInterrupt

    outgoing.put(b"SUB a")
    with monkeypatch.context() as patch:
        patch.setattr(Outgoing, "sent", interrupt)
        with pytest.raises(KeyboardInterrupt):
            outgoing.send(send, 7)
    outgoing.send(send, 7)
    assert sent == [(b"SUB a", 7)]
    assert outgoing.is_empty
    outgoing.put(b"SUB b")
    outgoing.send(send, 7)
    assert sent[1:] == [(b"SUB b", 7)]


def test_a_packet_that_could_not_be_sent_stays() -> None:
    outgoing = make()
    outgoing.put(b"SUB a")

    def refuse(packet: bytes, flags: int) -> int:
        raise BlockingIOError

    with pytest.raises(BlockingIOError):
        outgoing.send(refuse, 0)
    assert drained(outgoing) == [b"SUB a"]
