"""Stream sockets: frames in both directions, cut at any place, and all that a hostile client can do with them. Rule 14."""

from __future__ import annotations

import contextlib
import os
import random
import socket

import pytest

from sbus.protocol.packets import BATCH_HEAD, MAX_PACKET_BYTES, join_batch
from sbus_programs.config.quantities import NO_BOUND
from sbusd.dataplane.contract import UNREAD_BYTES, End, HardMode, SoftMode
from tests.support.frames import LENGTH, FrameEnd, frame
from tests.support.lingering import pass_on
from tests.support.switch_harness import LONG_TIMEOUTS, MakeHarness, SwitchHarness
from tests.support.wire import message

ALICE, BOB = 1_000, 1_001
LONG = MAX_PACKET_BYTES - 100
FAULT = b"CMSG !/bus/error\0FRAME"


def send_bytes(harness: SwitchHarness, number: int, data: bytes, *, at_once: int = 1 << 16) -> None:
    """Send bytes of a stream, and let the switch read each part."""
    view = memoryview(data)
    while view:
        with contextlib.suppress(BlockingIOError):
            view = view[harness.clients[number].send(view[:at_once]) :]
        harness.run()


def ends(harness: SwitchHarness, number: int) -> list[object]:
    """Return why a connection has ended."""
    return [each[2] for each in harness.events if each[0] == "ended" and each[1] == number]


def users(harness: SwitchHarness, uid: int, *numbers: int) -> None:
    """Set the user of clients."""
    for number in numbers:
        harness.set_party(number, uid)


# -- receiving


def test_packets_arrive_whole_however_the_stream_is_cut(harness: SwitchHarness) -> None:
    packets = [message(b"a", bytes([number]) * size) for number, size in enumerate((0, 1, 4_000, 4_090, 4_100, 70_000, LONG, 3))]
    subscriber, sender = harness.connect(b"a"), harness.connect(is_stream=True)
    received = []
    stream = b"".join(map(frame, packets))
    for size in (1 << 20, 65_536, 4_096, 4_095, 1_021):
        view = memoryview(stream)
        while view:
            part, view = view[:size], view[size:]
            send_bytes(harness, sender, bytes(part))
            received += harness.drain(subscriber)
        assert received == packets
        received.clear()


def test_a_stream_of_single_bytes_is_understood(harness: SwitchHarness) -> None:
    subscriber, sender = harness.connect(b"a"), harness.connect(is_stream=True)
    send_bytes(harness, sender, frame(message(b"a", b"x" * 100)) * 2, at_once=1)
    assert harness.receive(subscriber) == [message(b"a", b"x" * 100)] * 2
    assert harness.switch.connection_counters(sender).received_packets == 2


def test_a_batch_in_a_frame_is_a_batch(harness: SwitchHarness) -> None:
    subscriber, sender = harness.connect(b"a"), harness.connect(is_stream=True)
    packets = [message(b"a", b"%d" % number) for number in range(300)]
    send_bytes(harness, sender, frame(join_batch(packets)) + frame(message(b"a", b"last")) + frame(BATCH_HEAD) + frame(message(b"a", b"!")))
    assert harness.drain(subscriber) == [*packets, message(b"a", b"last"), message(b"a", b"!")]
    assert harness.switch.counters().received_batches == 2
    assert harness.receive(sender) == [b"CMSG !/bus/error\0EINVAL"]


def test_a_thousand_frames_at_once_are_read_like_a_thousand_packets(harness: SwitchHarness) -> None:
    """Each turn takes a batch of them, and another user's client is served in each."""
    sender, other = harness.connect(is_stream=True), harness.connect(b"b")
    users(harness, ALICE, sender)
    users(harness, BOB, other)
    send = b"".join(frame(message(b"a", b"%d" % number)) for number in range(1_000))
    assert harness.clients[sender].send(send) == len(send)
    turns = 0
    while harness.switch.connection_counters(sender).received_packets < 1_000:
        before = harness.switch.connection_counters(sender).received_packets
        harness.send(other, message(b"b", b"%d" % turns))
        harness.switch.turn(0)
        assert harness.switch.connection_counters(sender).received_packets - before <= harness.limits.batch_packets
        turns += 1
    harness.run()
    assert harness.drain(other) == [message(b"b", b"%d" % number) for number in range(turns)]
    assert turns >= 1_000 // harness.limits.batch_packets


@pytest.mark.parametrize("length", [0, MAX_PACKET_BYTES + 1, (1 << 32) - 1])
def test_a_frame_of_a_wrong_length_ends_the_connection_after_the_packets_before_it(harness: SwitchHarness, length: int) -> None:
    subscriber, sender = harness.connect(b"a"), harness.connect(is_stream=True)
    packets = [message(b"a", b"%d" % number) for number in range(200)]
    stream = b"".join(map(frame, packets)) + LENGTH.pack(length) + frame(message(b"a", b"never"))
    send_bytes(harness, sender, stream)
    assert harness.drain(subscriber) == packets
    assert harness.receive(sender) == [FAULT, b""]
    assert ends(harness, sender) == [End.FRAME]


def test_the_longest_packet_is_accepted(harness: SwitchHarness) -> None:
    sender = harness.connect(b"a", is_stream=True)
    packet = message(b"a", bytes(MAX_PACKET_BYTES - len(message(b"a"))))
    assert len(packet) == MAX_PACKET_BYTES
    send_bytes(harness, sender, frame(packet))
    assert harness.drain(sender) == [packet]


def test_a_stream_that_ends_within_a_frame_is_refused_if_its_client_still_reads(harness: SwitchHarness) -> None:
    sender = harness.connect(is_stream=True)
    send_bytes(harness, sender, frame(b"CMSG ping\0") + b"\5\0")
    harness.clients[sender].shutdown(socket.SHUT_WR)
    harness.run()
    assert harness.receive(sender) == [b"CMSG ping\0", FAULT, b""]
    closed = harness.connect(is_stream=True)
    send_bytes(harness, closed, b"\5\0\0\0MS")
    harness.hang_up(closed)
    harness.run()
    assert ends(harness, closed) == [End.HANGUP]


def test_a_stream_that_shuts_down_its_sending_side_between_frames_still_receives(harness: SwitchHarness) -> None:
    subscriber, sender = harness.connect(b"a", is_stream=True), harness.connect()
    harness.clients[subscriber].shutdown(socket.SHUT_WR)
    harness.run()
    harness.send(sender, message(b"a", b"1"))
    harness.run()
    assert harness.receive(subscriber) == [message(b"a", b"1")]


def test_malformed_packets_in_frames_are_refused_as_without(harness: SwitchHarness) -> None:
    sender = harness.connect(is_stream=True)
    send_bytes(harness, sender, frame(message(b"!/no")) + frame(b"BAD"))
    assert harness.receive(sender) == [b"CMSG !/bus/error\0RESERVED\0!/no", b"CMSG !/bus/error\0EPROTO", b""]


# -- memory of frames that are received in part


def test_many_long_frames_of_one_user_get_memory_one_after_the_other(harness: SwitchHarness) -> None:
    """No frame that has memory ever waits, so each of them arrives."""
    count = 3 * UNREAD_BYTES // LONG
    subscriber, senders = harness.connect(b"a"), [harness.connect(is_stream=True) for _ in range(count)]
    users(harness, ALICE, *senders)
    streams = {sender: frame(message(b"a", b"%06d" % sender + bytes(LONG))) for sender in senders}
    received: set[int] = set()
    shuffled = random.Random(1)
    while any(streams.values()):
        for sender in shuffled.sample(senders, len(senders)):
            if streams[sender]:
                try:
                    streams[sender] = streams[sender][harness.clients[sender].send(streams[sender][:50_000]) :]
                except BlockingIOError:
                    continue
        harness.run()
        received |= {int(packet[6:12]) for packet in harness.receive(subscriber) if packet.startswith(b"MSG")}
    harness.run()
    received |= {int(packet[6:12]) for packet in harness.drain(subscriber) if packet.startswith(b"MSG")}
    assert received == set(senders)


def test_half_read_frames_delay_only_long_frames_of_the_same_user(harness: SwitchHarness) -> None:
    count = UNREAD_BYTES // LONG + 1
    subscriber = harness.connect(b"a")
    hoarders = [harness.connect(is_stream=True) for _ in range(count)]
    late, other, packets = harness.connect(is_stream=True), harness.connect(is_stream=True), harness.connect()
    users(harness, ALICE, *hoarders, late, packets)
    users(harness, BOB, subscriber, other)
    whole = frame(message(b"a", bytes(LONG)))
    for hoarder in hoarders:
        send_bytes(harness, hoarder, whole[:5_000])
    small = message(b"a", b"small")
    send_bytes(harness, late, frame(small))
    harness.send(packets, small)
    harness.run()
    assert harness.receive(subscriber) == [small, small]
    send_bytes(harness, late, whole[:10_000])
    harness.clients[late].send(whole[10_000:20_000])
    send_bytes(harness, other, whole)
    harness.send(packets, small)
    harness.run()
    assert sorted(map(len, harness.drain(subscriber))) == sorted([len(small), len(whole) - 4])
    assert harness.switch.connection_counters(late).received_packets == 1
    harness.hang_up(hoarders[0])
    harness.run()
    send_bytes(harness, late, whole[20_000:])
    assert list(map(len, harness.drain(subscriber))) == [len(whole) - 4]


# -- sending


def test_a_slow_stream_gets_every_frame_whole_and_in_order(harness: SwitchHarness) -> None:
    subscriber, sender = harness.connect(b"a", is_stream=True, send_buffer=5_000), harness.connect()
    packets = [message(b"a", bytes([number]) * (number * 997 % 30_000)) for number in range(100)]
    for packet in packets:
        assert harness.send(sender, packet)
        harness.run()
        harness.check_balance()
    assert harness.drain(subscriber) == packets
    harness.check_balance()
    counters = harness.switch.connection_counters(subscriber)
    assert (counters.delivered_packets, counters.queued_packets) == (100, 0)
    assert counters.delivered_bytes == sum(map(len, packets))


def test_senders_names_are_in_the_frames(harness: SwitchHarness) -> None:
    subscriber, sender = harness.connect(b"a", is_stream=True, send_buffer=5_000), harness.connect(is_stream=True)
    harness.set_party(sender, ALICE, cred=b"!/cred/1/2/3")
    harness.configure(subscriber, sender=True, batch=True)
    packets = [message(b"a", bytes([number]) * 3_000) for number in range(50)]
    send_bytes(harness, sender, b"".join(map(frame, packets)))
    assert harness.drain(subscriber) == [b"CMSG !/from/%d/!/cred/1/2/3\0%b" % (sender, packet) for packet in packets]


@pytest.mark.parametrize("soft", [SoftMode.QUEUE, SoftMode.DISCARD])
def test_the_rests_of_frames_do_not_exceed_what_a_user_may_queue(harness: SwitchHarness, soft: SoftMode) -> None:
    subscribers, sender = [harness.connect(b"a", is_stream=True, send_buffer=5_000) for _ in range(20)], harness.connect()
    users(harness, ALICE, *subscribers, sender)
    harness.set_user_limits(ALICE, NO_BOUND, 500_000)
    for subscriber in subscribers:
        harness.configure(subscriber, soft=soft)
    packets = [message(b"a", bytes([number]) * 100_000) for number in range(3)]
    for packet in packets:
        assert harness.send(sender, packet)
        harness.run()
        assert 0 < harness.switch.counters().queued_bytes <= 500_000 + 20 * 5_000
    assert harness.send(sender, message(b"a", b"short"))
    received = [harness.drain(subscriber) for subscriber in subscribers]
    assert all(
        packet in [*packets, message(b"a", b"short")] or packet.startswith(b"CMSG !/bus/lost\0") for each in received for packet in each
    )
    assert sum(packet in packets for each in received for packet in each) >= 4
    harness.check_balance()


@pytest.mark.parametrize("soft", [SoftMode.DISCARD, SoftMode.BLOCK])
def test_a_frame_that_is_sent_in_part_is_completed_in_every_mode(make_harness: MakeHarness, soft: SoftMode) -> None:
    harness = make_harness(LONG_TIMEOUTS)
    subscriber, sender = harness.connect(b"a", is_stream=True, send_buffer=5_000), harness.connect()
    users(harness, ALICE, subscriber, sender)
    harness.configure(subscriber, soft=soft, hard=HardMode.DISCARD)
    packets = [message(b"a", bytes([number]) * 20_000) for number in range(10)]
    for packet in packets:
        assert harness.send(sender, packet)
        harness.run()
    received = [packet for packet in harness.drain(subscriber) if not packet.startswith(b"CMSG !/bus/lost")]
    assert received == (packets if soft is SoftMode.BLOCK else packets[: len(received)])
    assert received


def test_last_words_are_not_put_into_a_frame(harness: SwitchHarness) -> None:
    subscriber, sender = harness.connect(b"a", is_stream=True, send_buffer=5_000), harness.connect()
    packet = message(b"a", bytes(100_000))
    harness.send(sender, packet)
    harness.run()
    assert harness.switch.connection_counters(subscriber).queued_packets == 1
    harness.switch.disconnect(subscriber, b"CMSG !/bus/error\0EACCES")
    harness.run()
    assert harness.receive(subscriber) == [b""]
    assert frame(packet).startswith(harness.frames[subscriber].partial)
    harness.check_balance()


# -- restarts


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 4_000, 6_000, 90_000])
def test_a_handover_keeps_half_a_frame_in_each_direction(harness: SwitchHarness, cut: int) -> None:
    stream, other = harness.connect(b"a", is_stream=True, send_buffer=5_000), harness.connect(b"b")
    for each in (stream, other):
        users(harness, ALICE, each)
    packets = [message(b"a", bytes([number]) * 30_000) for number in range(10)]
    for packet in packets:
        harness.send(other, packet)
        harness.run()
    sent = message(b"b", bytes(range(256)) * 400)
    send_bytes(harness, stream, frame(sent)[:cut])
    for _ in range(3):
        harness.hand_over()
        harness.check_balance()
        harness.run()
    send_bytes(harness, stream, frame(sent)[cut:])
    assert harness.drain(other) == [sent]
    assert harness.drain(stream) == packets
    assert harness.switch.connection_counters(stream).delivered_packets == len(packets)


def test_a_handover_keeps_the_fault_of_a_stream(harness: SwitchHarness) -> None:
    """The packets before it are still handled, and then it ends the connection."""
    subscriber, sender = harness.connect(b"a"), harness.connect(is_stream=True)
    packets = [message(b"a", b"%d" % number) for number in range(500)]
    harness.clients[sender].send(b"".join(map(frame, packets)) + LENGTH.pack(0) + b"rest")
    harness.switch.turn(0)
    harness.hand_over()
    harness.run()
    assert harness.drain(subscriber) == packets
    assert harness.receive(sender) == [FAULT, b""]


# -- descriptors


def test_descriptors_in_a_stream_end_the_connection_after_the_packets_before_them(harness: SwitchHarness) -> None:
    """As on a kernel that cannot refuse them: they are there before the switch takes over the socket."""
    subscriber = harness.connect(b"a")
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    packets = [message(b"a", b"%d" % number) for number in range(20)]
    reader, writer = os.pipe()
    mine.send(b"".join(map(frame, packets)))
    pass_on(mine, frame(message(b"a", b"never")), writer)
    os.close(writer)
    number = harness.switch.next_connection()
    harness.switch.adopt(theirs.detach(), number)
    harness.run()
    with mine:
        mine.setblocking(False)
        assert FrameEnd(mine).receive(1) == [b"CMSG !/bus/error\0DESCRIPTORS"]
    while ("closed", number) not in harness.events:
        harness.switch.turn(10)
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert harness.drain(subscriber) in ([], packets)
    assert ends(harness, number) == [End.DESCRIPTORS]
