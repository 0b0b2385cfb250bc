"""Frames that a stream socket takes in part: whose memory the rests are, and what one long packet for many streams may cost. Rule 14."""

from __future__ import annotations

import pytest

from sbus.protocol.packets import join_batch
from sbus_programs.config.quantities import NO_BOUND
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import ENTRY_BYTES, End, Order, SoftMode, packet_bytes, waiting_bytes
from tests.support.frames import frame
from tests.support.heap import heap_bytes
from tests.support.switch_harness import MakeHarness, SwitchHarness
from tests.support.wire import message

ALICE, BOB = 1_000, 1_001
LONG = message(b"a", bytes(range(256)) * 1_560)
SMALL_BUFFER = 5_000
UNBOUNDED = LimitSettings(turn_time=10.0, queued_memory=1 << 30)
"""With which a turn sends each long frame, as far as the socket takes it."""

TURN_BYTES = 4_096
SHORT_TURNS = LimitSettings(turn_time=1e-6, queued_memory=1 << 30)
"""With which a turn sends TURN_BYTES of long frames to a user."""


def streams(harness: SwitchHarness, count: int, uid: int, *patterns: bytes, send_buffer: int | None = SMALL_BUFFER) -> list[int]:
    """Return new clients of a user on stream sockets."""
    made = [harness.connect(*patterns, is_stream=True, send_buffer=send_buffer) for _ in range(count)]
    for number in made:
        harness.set_party(number, uid, cred=b"!/cred/1/%d/%d" % (uid, number))
    return made


def publish(harness: SwitchHarness, sender: int, *packets: bytes) -> None:
    """Publish packets, each in a turn of its own."""
    for packet in packets:
        assert harness.send(sender, packet)
        harness.run()


# -- memory


def test_720_slow_streams_share_one_copy_of_a_message(make_harness: MakeHarness) -> None:
    harness = make_harness(UNBOUNDED)
    slow, sender = streams(harness, 720, ALICE, b"a"), harness.connect()
    before = heap_bytes()
    publish(harness, sender, LONG)
    counters = harness.switch.counters()
    assert counters.queued_packets == 720
    assert counters.queued_bytes == harness.switch.user_counters(ALICE).queued_bytes == 720 * waiting_bytes(len(LONG))
    assert counters.held_bytes == packet_bytes(len(LONG)) + 720 * ENTRY_BYTES
    assert heap_bytes() - before < 3 * len(LONG)
    for number in slow:
        assert harness.drain(number) == [LONG]
    assert harness.switch.counters().held_bytes == harness.switch.counters().queued_bytes == 0


def test_a_packet_of_the_queue_becomes_the_rest_without_a_copy(make_harness: MakeHarness) -> None:
    harness = make_harness(UNBOUNDED)
    slow, sender = streams(harness, 5, ALICE, b"a"), harness.connect()
    first, second = LONG, message(b"a", b"2" * 200_000)
    publish(harness, sender, first, second)
    queued = harness.switch.counters()
    for number in slow:
        while not harness.receive(number):
            harness.run()
        harness.run()
    counters = harness.switch.counters()
    assert counters.queued_packets == 5
    assert queued.held_bytes - counters.held_bytes == packet_bytes(len(first)) + 5 * ENTRY_BYTES
    assert counters.queued_bytes == 5 * waiting_bytes(len(second))
    for number in slow:
        assert harness.drain(number) == [second]
    assert harness.switch.counters().held_bytes == 0


def test_a_rest_is_charged_to_its_publisher_as_in_a_queue(make_harness: MakeHarness) -> None:
    """Another user may use at most as much as it leaves free, so a second stream does not begin to get the message."""
    harness = make_harness(UNBOUNDED)
    slow, sender = streams(harness, 3, ALICE, b"a"), harness.connect()
    harness.set_party(sender, BOB)
    harness.set_user_limits(ALICE, NO_BOUND, 2 * waiting_bytes(len(LONG)) + 1_000)
    publish(harness, sender, LONG)
    assert harness.switch.user_counters(ALICE).queued_bytes <= waiting_bytes(len(LONG)) + 1_000
    own = harness.connect()
    harness.set_party(own, ALICE)
    received = [harness.drain(number) for number in slow]
    assert received == [[LONG], [b"CMSG !/bus/lost\x001"], [b"CMSG !/bus/lost\x001"]]
    publish(harness, own, LONG)
    assert [harness.drain(number) for number in slow] == [[LONG], [LONG], [b"CMSG !/bus/lost\x001"]]


def test_half_read_frames_are_counted(make_harness: MakeHarness) -> None:
    harness = make_harness()
    alice, bob = streams(harness, 2, ALICE), streams(harness, 1, BOB)
    for number, sent in ((alice[0], 5_000), (alice[1], 100), (bob[0], 6_000)):
        harness.clients[number].send(frame(LONG)[:sent])
    harness.run()
    size = len(frame(LONG))
    assert [harness.switch.user_counters(uid).half_read_bytes for uid in (ALICE, BOB)] == [2 * size, size]
    assert harness.switch.counters().half_read_bytes == 3 * size
    harness.hand_over()
    assert harness.switch.counters().half_read_bytes == 3 * size
    harness.hang_up(alice[0])
    harness.run()
    assert harness.switch.user_counters(ALICE).half_read_bytes == size
    for number, sent in ((alice[1], 100), (bob[0], 6_000)):
        view = memoryview(frame(LONG))[sent:]
        while view:
            view = view[harness.clients[number].send(view[:50_000]) :]
            harness.run()
    assert harness.switch.counters().half_read_bytes == harness.switch.user_counters(BOB).half_read_bytes == 0


# -- heads, orders, groups


@pytest.mark.parametrize("send_buffer", [SMALL_BUFFER, 40_000])
@pytest.mark.parametrize("size", [3_000, 30_000, 200_000])
def test_each_stream_gets_its_own_heads(make_harness: MakeHarness, size: int, send_buffer: int) -> None:
    harness = make_harness(UNBOUNDED)
    plain, named, member, both = streams(harness, 4, ALICE, send_buffer=send_buffer)
    sender = harness.connect()
    harness.set_party(sender, ALICE, cred=b"!/cred/1/2/3")
    for number, group in ((member, b"\0g"), (both, b"\0h"), (plain, b""), (named, b"")):
        harness.switch.subscribe(number, b"a" + group)
    for number in (named, both):
        harness.configure(number, sender=True)
    packets = [message(b"a", bytes([number]) * size) for number in range(12)]
    publish(harness, sender, *packets)
    name = b"CMSG !/from/%d/!/cred/1/2/3\0" % sender
    for number, head in ((plain, b""), (named, name), (member, b"CMSG !/group/g\0"), (both, b"CMSG !/group/h\0" + name)):
        assert harness.drain(number) == [head + packet for packet in packets]
    assert harness.switch.counters().held_bytes == 0


def test_a_message_that_was_sent_in_part_is_not_replaced(make_harness: MakeHarness) -> None:
    harness = make_harness(UNBOUNDED)
    (slow,), sender = streams(harness, 1, ALICE, b"a", b"b"), harness.connect()
    harness.configure(slow, order=Order.LATEST)
    packets = [message(b"a", bytes([number]) * 100_000) for number in range(4)]
    publish(harness, sender, packets[0], packets[1], message(b"b", b"x"), packets[2], packets[3])
    assert harness.drain(slow) == [packets[0], b"CMSG !/bus/replaced\x002", packets[3], message(b"b", b"x")]
    assert harness.switch.counters().held_bytes == 0


def test_another_member_gets_the_message_that_one_got_in_part(make_harness: MakeHarness) -> None:
    harness = make_harness(UNBOUNDED)
    first, second = streams(harness, 2, ALICE)
    sender = harness.connect()
    harness.switch.subscribe(first, b"a\0g")
    publish(harness, sender, LONG)
    harness.switch.subscribe(second, b"a\0g")
    harness.hang_up(first)
    harness.run()
    assert harness.switch.counters().redelivered_packets == 1
    assert harness.drain(second) == [b"CMSG !/group/g\0" + LONG]
    assert harness.switch.counters().held_bytes == 0


# -- restarts


def test_a_handover_keeps_one_copy_for_all_rests(make_harness: MakeHarness) -> None:
    harness = make_harness(UNBOUNDED)
    slow, sender = streams(harness, 20, ALICE, b"a"), harness.connect()
    harness.configure(slow[0], sender=True)
    harness.set_party(sender, BOB, cred=b"!/cred/1/2/3")
    publish(harness, sender, LONG)
    before = harness.switch.counters()
    for _ in range(2):
        packets, queues = harness.switch.queues()
        assert sorted(packets) == sorted([LONG, b"CMSG !/from/%d/!/cred/1/2/3\0" % sender])
        assert all(queue.part_sent is not None and queue.part_sent[0][2] == BOB for queue in queues.values())
        harness.hand_over()
        counters = harness.switch.counters()
        assert (counters.held_bytes, counters.queued_bytes) == (before.held_bytes, before.queued_bytes)
    for number in slow[1:]:
        assert harness.drain(number) == [LONG]
    assert harness.drain(slow[0]) == [b"CMSG !/from/%d/!/cred/1/2/3\0" % sender + LONG]


# -- one long packet for many streams


def test_a_turn_sends_a_user_a_bounded_number_of_bytes(make_harness: MakeHarness) -> None:
    harness = make_harness(SHORT_TURNS)
    ready, sender = streams(harness, 30, ALICE, b"a", send_buffer=None), harness.connect()
    assert harness.send(sender, LONG)
    turns, before = 0, 0
    received: dict[int, list[bytes]] = {number: [] for number in ready}
    while harness.switch.turn(0):
        turns += 1
        harness.check_balance()
        for number in ready:
            received[number] += harness.receive(number)
        after = sum(len(harness.frames[number].partial) + sum(map(len, packets)) for number, packets in received.items())
        assert after - before <= 2 * TURN_BYTES
        before = after
    assert turns >= len(ready) * len(LONG) // (2 * TURN_BYTES)
    assert list(received.values()) == [[LONG]] * 30


def test_a_user_does_not_wait_for_the_frames_of_another(make_harness: MakeHarness) -> None:
    harness = make_harness(SHORT_TURNS)
    streams(harness, 50, ALICE, b"a", send_buffer=None)
    (other,), sender = streams(harness, 1, BOB, b"a", send_buffer=None), harness.connect()
    packet = message(b"a", bytes(2 * TURN_BYTES - 200))
    for number in range(1, 4):
        assert harness.send(sender, packet)
        while harness.switch.counters().messages < number:
            harness.switch.turn(0)
        received: list[bytes] = []
        for _ in range(3):
            harness.switch.turn(0)
            received += harness.receive(other)
        assert received == [packet]
    assert harness.switch.counters().queued_packets > 40


@pytest.mark.parametrize("soft", list(SoftMode))
def test_a_deferred_frame_costs_no_packet_in_any_mode(make_harness: MakeHarness, soft: SoftMode) -> None:
    """The sockets have room for all of it, so the soft mode is not asked. The publisher is of another user, whom none can block."""
    harness = make_harness(SHORT_TURNS)
    ready, sender = streams(harness, 20, ALICE, b"a", send_buffer=None), harness.connect()
    harness.set_party(sender, BOB)
    for number in ready:
        harness.configure(number, soft=soft)
    packets = [message(b"a", b"0"), message(b"a", b"1" * 100_000), message(b"a", b"2"), message(b"a", b"3" * 10_000), message(b"a", b"4")]
    for _ in range(3):
        assert harness.send(sender, join_batch(packets))
        harness.switch.turn(0)
        harness.switch.turn(0)
        harness.hand_over()
        harness.run()
        assert [harness.drain(number) for number in ready] == [packets] * 20
    assert not [event for event in harness.events if event[0] in {"lost", "ended"}]


def test_last_words_follow_no_frame_that_is_only_deferred(make_harness: MakeHarness) -> None:
    harness = make_harness(SHORT_TURNS)
    ready, sender = streams(harness, 3, ALICE, b"a", send_buffer=None), harness.connect()
    assert harness.send(sender, LONG)
    harness.switch.turn(0)
    assert [harness.receive(number) for number in ready] == [[]] * 3
    waiting = [number for number in ready if not harness.frames[number].partial]
    assert len(waiting) == 2
    for number in waiting:
        harness.switch.disconnect(number, b"CMSG !/bus/error\0EACCES")
    harness.run()
    for number in waiting:
        assert harness.receive(number) == [b"CMSG !/bus/error\0EACCES", b""]
    harness.check_balance()


def test_many_streams_that_end_within_frames_do_not_exceed_the_limit_of_a_turn(make_harness: MakeHarness) -> None:
    """To complete each of the frames before the last words would take as long as the message to all of them."""
    harness = make_harness(SHORT_TURNS)
    ready, sender = streams(harness, 20, ALICE, b"a", send_buffer=None), harness.connect()
    assert harness.send(sender, message(b"a", bytes(10 * TURN_BYTES)))
    while not all(harness.frames[number].partial for number in ready):
        harness.switch.turn(0)
        assert [harness.receive(number) for number in ready] == [[]] * 20
    before = sum(len(harness.frames[number].partial) for number in ready)
    for number in ready:
        harness.switch.disconnect(number, b"CMSG !/bus/error\0EACCES")
    harness.run()
    assert [harness.receive(number) for number in ready] == [[b""]] * 20
    assert sum(len(harness.frames[number].partial) for number in ready) - before <= 3 * TURN_BYTES
    harness.check_balance()


def test_a_full_socket_ends_the_deferral(make_harness: MakeHarness) -> None:
    """From then on the soft mode decides, also if the turns have sent less than the socket takes."""
    harness = make_harness(SHORT_TURNS)
    slow, sender = streams(harness, 3, ALICE, b"a"), harness.connect()
    for number in slow:
        harness.configure(number, soft=SoftMode.DISCARD)
    publish(harness, sender, LONG, *[message(b"a", b"%d" % number) for number in range(10)])
    for number in slow:
        assert harness.switch.connection_counters(number).lost_packets == 10
        assert harness.drain(number) == [LONG, b"CMSG !/bus/lost\x0010"]


@pytest.mark.parametrize("soft", [SoftMode.DISCARD, SoftMode.ERROR, SoftMode.BLOCK])
def test_a_stream_that_does_not_read_gains_no_queue_by_the_limit_of_a_turn(make_harness: MakeHarness, soft: SoftMode) -> None:
    harness = make_harness(SHORT_TURNS)
    (slow,), sender = streams(harness, 1, ALICE, b"a", send_buffer=40_000), harness.connect()
    harness.set_party(sender, BOB)
    harness.configure(slow, soft=soft)
    publish(harness, sender, *[message(b"a", bytes(10_000)) for _ in range(40)])
    if soft is SoftMode.ERROR:
        assert [event[2] for event in harness.events if event[:2] == ("ended", slow)] == [End.QUEUE_FULL]
        return
    counters = harness.switch.connection_counters(slow)
    assert counters.lost_packets >= 30
    assert counters.queued_bytes <= 2 * 40_000
