"""A client takes the same from the bus however it is split into batches, and sends the same however much leaves together."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from sbus.errors import ProtocolError
from sbus.inbox import Bounds, Inbox, Overflow
from sbus.items import Item
from sbus.outgoing import POSTED_BYTES, Outgoing
from sbus.protocol.packets import is_batch, join_batch, parse_batch
from sbus.session import Session
from sbus.statistics import Statistics

KEYS = st.sampled_from([b"a", b"b", b"c/d"])

MESSAGES = st.builds(lambda key, payload: b"MSG %b\0%b" % (key, payload), KEYS, st.binary(max_size=40))

OTHERS = st.sampled_from(
    [
        b"CMSG !/bus/lost\x003",
        b"CMSG !/bus/lost\x000",
        b"CMSG !/bus/error\0EPERM no",
        b"CMSG !/bus/ping\0sbus/3",
        b"CMSG !/bus/stats\0{}",
        b"CMSG !/from/7/!/cred/1/2/3\0MSG a\0x",
        b"CMSG !/tap\0{}\n",
    ]
)

FAULTS = st.sampled_from([b"MSG a", b"SUB a", b"x", b"CMSG !/bus/lost\0x", b"CMSG !/from/x\0MSG a\0"])

GROUPS = st.lists(st.lists(MESSAGES | MESSAGES | OTHERS, min_size=1, max_size=12), max_size=12)

BOUNDS = st.builds(Bounds, st.integers(1, 30), st.integers(1, 300), st.sampled_from(Overflow))

PATTERNS = st.lists(st.sampled_from([b"", b"a", b"b", b"c/"]), min_size=1, max_size=3)

Outcome = tuple[list[list[Item]], Statistics, str]


def received_items(packets: list[bytes], patterns: list[bytes], bounds: Bounds) -> Outcome:
    """Return what each subscription yields in the end, the counts, and the fault that ended it."""
    session = Session(bounds=bounds)
    inboxes: list[Inbox] = []
    for pattern in patterns:
        inboxes.append(session.new_inbox([pattern]))
        session.subscribe(inboxes[-1])
    fault = ""
    try:
        for packet in packets:
            session.receive(packet)
    except ProtocolError as error:
        fault = error.words
    taken = [inbox.take_many(10_000) for inbox in inboxes]
    assert not any(map(len, inboxes))
    assert not session.stalled
    return taken, replace(session.statistics(), batches_received=0), fault


@given(GROUPS, PATTERNS, BOUNDS)
@example([[b"MSG a\0x"] * 5], [b"a"], Bounds(4, 300, Overflow.DISCARD))
def test_any_split_into_batches_gives_the_same(groups: list[list[bytes]], patterns: list[bytes], bounds: Bounds) -> None:
    alone = [packet for group in groups for packet in group]
    together = [join_batch(group) if len(group) > 1 else group[0] for group in groups]
    assert received_items(together, patterns, bounds) == received_items(alone, patterns, bounds)


@given(st.lists(MESSAGES | OTHERS, max_size=8), FAULTS, st.lists(MESSAGES, max_size=3), PATTERNS)
def test_a_fault_ends_it_at_the_same_place(front: list[bytes], fault: bytes, behind: list[bytes], patterns: list[bytes]) -> None:
    alone = received_items([*front, fault, *behind], patterns, Bounds())
    assert alone[2]
    assert received_items([join_batch([*front, fault, *behind])], patterns, Bounds()) == alone


@given(st.lists(MESSAGES, min_size=1, max_size=8), st.binary(max_size=12), PATTERNS)
def test_packets_before_malformed_bytes_are_returned(front: list[bytes], tail: bytes, patterns: list[bytes]) -> None:
    """However a batch goes on, its first packets are those that it begins with, and nothing but a ProtocolError comes of it."""
    whole = received_items(front, patterns, Bounds())[0]
    broken = received_items([join_batch(front) + tail], patterns, Bounds())[0]
    for expected, items in zip(whole, broken, strict=True):
        assert items[: len(expected)] == expected


@given(st.lists(st.tuples(st.booleans(), MESSAGES), max_size=60), st.integers(20, 400), st.booleans(), st.data())
def test_sent_packets_equal_the_input(packets: list[tuple[bool, bytes]], limit: int, takes_batches: bool, data: st.DataObject) -> None:
    outgoing = Outgoing(max(limit, 60))
    outgoing.takes_batches = takes_batches
    sent: list[bytes] = []
    for is_post, packet in packets:
        if not is_post:
            outgoing.put(packet)
        elif outgoing.posted_bytes < POSTED_BYTES:
            outgoing.post(packet)
        if data.draw(st.booleans()):
            head = outgoing.head()
            assert outgoing.head() == head
            if data.draw(st.booleans()):
                sent.append(head)
                outgoing.sent()
    while outgoing:
        sent.append(outgoing.head())
        outgoing.sent()
    assert all(len(packet) <= outgoing.packet_limit for packet in sent)
    assert takes_batches or not any(map(is_batch, sent))
    assert [each for packet in sent for each in (parse_batch(packet) if is_batch(packet) else [packet])] == [each for _, each in packets]
    assert outgoing.posted_bytes == 0
