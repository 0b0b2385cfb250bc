"""Batches: how packets are joined and split, and that nothing else changes."""

from __future__ import annotations

import socket
import struct

import pytest

from sbus.protocol import controls
from sbus.protocol.packets import BATCH_HEAD, LENGTH_BYTES, MAX_BATCH_BYTES, MAX_PACKET_BYTES, is_batch, join_batch, parse_batch
from sbus_programs.config.settings import DaemonSettings, LimitSettings, QuotaSettings
from sbusd.dataplane.contract import UNREAD_BYTES, End, HardMode, Order, SoftMode
from tests.support.in_process_bus import InProcessBus, MakeBus
from tests.support.switch_harness import MakeHarness, SwitchHarness
from tests.support.wire import error_code, message

ALICE, BOB = 1_000, 1_001
TURN_PACKETS = LimitSettings().batch_packets


def numbered(first: int, count: int, size: int = 0, key: bytes = b"a") -> list[bytes]:
    """Return distinguishable messages."""
    return [message(key, b"%06d " % number + bytes(size)) for number in range(first, first + count)]


def apart(packets: list[bytes]) -> list[bytes]:
    """Return packets as they would have come without batches."""
    return [inner for packet in packets for inner in (parse_batch(packet) if is_batch(packet) else [packet])]


def want(harness: SwitchHarness, client: int, on: bool = True) -> None:
    """Let a client want batches, or not."""
    harness.send(client, b"CMSG batch/on" if on else b"CMSG batch/off")
    harness.run()


def send_all(harness: SwitchHarness, sender: int, packets: list[bytes]) -> None:
    """Send packets that the switch finds together."""
    for packet in packets:
        assert harness.send(sender, packet)
    harness.run()


# -- going out


def test_packets_that_are_ready_together_are_batched_on_request(harness: SwitchHarness) -> None:
    eager, plain, sender = harness.connect(b"a"), harness.connect(b"a"), harness.connect()
    want(harness, eager)
    packets = numbered(0, 10)
    send_all(harness, sender, packets)
    assert harness.receive(eager) == [join_batch(packets)]
    assert harness.receive(plain) == packets
    want(harness, eager, on=False)
    send_all(harness, sender, packets)
    assert harness.receive(eager) == packets


def test_a_single_packet_is_sent_immediately_without_a_batch(harness: SwitchHarness) -> None:
    eager, sender = harness.connect(b"a"), harness.connect()
    want(harness, eager)
    for packet in numbered(0, 3):
        send_all(harness, sender, [packet])
        assert harness.receive(eager) == [packet]
    assert harness.switch.counters().delivered_batches == 0


def test_batching_applies_to_queued_packets_from_its_position_on(harness: SwitchHarness) -> None:
    slow, sender = harness.connect(b"a", send_buffer=20_000), harness.connect()
    packets = numbered(0, 40, 2_000)
    for packet in packets:
        send_all(harness, sender, [packet])
    want(harness, slow)
    received = harness.drain(slow)
    assert apart(received) == packets
    assert any(is_batch(packet) for packet in received)
    assert not is_batch(received[0])


def test_the_bus_s_own_words_go_in_their_place_among_messages(harness: SwitchHarness) -> None:
    client = harness.connect(b"a")
    want(harness, client)
    send_all(
        harness, client, [*numbered(0, 2), message(b"!/no"), b"CMSG receipt/always\0t", *numbered(2, 1), b"CMSG pong\0", *numbered(3, 2)]
    )
    received = apart(harness.receive(client))
    heads = [packet[:18] for packet in received]
    assert heads == [message(b"a", b"%06d " % 0)[:18], message(b"a", b"%06d " % 1)[:18], b"CMSG !/bus/error\0R",
                     message(b"a", b"%06d " % 2)[:18], b"CMSG !/bus/receipt", b"CMSG pong\0", *numbered(3, 2)]  # fmt: skip


def test_refusals_that_come_together_go_together(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(turn_time=10.0))
    client = harness.connect()
    want(harness, client)
    send_all(harness, client, [message(b"!/no"), message(b"k" * 5_000), message(b"!/no")])
    (received,) = harness.receive(client)
    assert [packet[17:] for packet in parse_batch(received)] == [*[b"RESERVED\0!/no", b"KEY_TOO_LONG\0" + b"k" * 1_024, b"RESERVED\0!/no"]]


def test_senders_and_taps_come_in_batches_with_their_heads(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(turn_time=10.0))
    curious, tapper, sender = harness.connect(b"a"), harness.connect(), harness.connect()
    harness.switch.set_party(sender, ALICE, cred=b"!/cred/1/2/3")
    for client, command in ((curious, b"CMSG sender/on"), (tapper, b"CMSG tap/on\0")):
        harness.send(client, command)
        want(harness, client)
    packets = numbered(0, 5)
    send_all(harness, sender, packets)
    (received,) = harness.receive(curious)
    assert list(parse_batch(received)) == [b"CMSG !/from/%d/!/cred/1/2/3\0%b" % (sender, packet) for packet in packets]
    (reported,) = harness.receive(tapper)
    assert [packet.partition(b"\n")[2] for packet in parse_batch(reported)] == packets


def test_a_batch_has_a_maximum_size_and_larger_packets_are_sent_alone(harness: SwitchHarness) -> None:
    eager, sender = harness.connect(b"a"), harness.connect()
    want(harness, eager)
    for size in (MAX_BATCH_BYTES // 2 - 100, MAX_BATCH_BYTES // 2, MAX_BATCH_BYTES, 150_000):
        packets = [*numbered(0, 2, size), *numbered(2, 3)]
        send_all(harness, sender, packets)
        received = harness.drain(eager)
        assert apart(received) == packets
        assert all(len(packet) <= MAX_BATCH_BYTES for packet in received if is_batch(packet))
        assert is_batch(received[0]) is (size < MAX_BATCH_BYTES // 2 - 50)
    exact = (MAX_BATCH_BYTES - len(BATCH_HEAD)) // 2 - LENGTH_BYTES - len(message(b"a"))
    packets = [message(b"a", bytes(exact)), message(b"a", bytes(exact + 1))]
    send_all(harness, sender, packets)
    assert [len(packet) for packet in harness.receive(eager)] == [MAX_BATCH_BYTES]


def test_a_batch_larger_than_the_socket_buffer_is_made_smaller(harness: SwitchHarness) -> None:
    eager, sender = harness.connect(b"a", send_buffer=4_608), harness.connect()
    want(harness, eager)
    packets = numbered(0, 60, 400)
    send_all(harness, sender, packets)
    received = harness.drain(eager)
    assert apart(received) == packets
    assert any(is_batch(packet) for packet in received)
    assert harness.switch.connection_counters(eager).lost_packets == 0


def test_only_a_packet_too_large_for_the_socket_is_lost_and_reported_in_its_place(harness: SwitchHarness) -> None:
    eager, sender = harness.connect(b"a", send_buffer=20_000), harness.connect()
    want(harness, eager)
    packets = [*numbered(0, 2), message(b"a", bytes(100_000)), *numbered(2, 2)]
    send_all(harness, sender, packets)
    assert apart(harness.drain(eager)) == [*packets[:2], b"CMSG !/bus/lost\x001", *packets[3:]]


@pytest.mark.parametrize("order", [Order.QUEUE, Order.STACK, Order.RANDOM])
def test_queues_are_counted_and_discarded_by_packets_in_every_order(make_harness: MakeHarness, order: Order) -> None:
    harness = make_harness(LimitSettings(queue_packets=20))
    slow, sender = harness.connect(b"a", send_buffer=4_608), harness.connect()
    harness.configure(slow, order=order)
    harness.configure(slow, hard=HardMode.DISCARD)
    want(harness, slow)
    for packet in numbered(0, 60, 1_000):
        send_all(harness, sender, [packet])
    counters = harness.switch.connection_counters(slow)
    assert counters.queued_packets == 20
    assert counters.lost_packets + counters.queued_packets + counters.delivered_packets == 60
    received = apart(harness.drain(slow))
    lost = [int(packet.partition(b"\0")[2]) for packet in received if packet.startswith(b"CMSG !/bus/lost")]
    assert sum(lost) == counters.lost_packets
    assert len(received) - len(lost) == 60 - counters.lost_packets


def test_packets_in_batches_are_counted_like_single_ones(harness: SwitchHarness) -> None:
    eager, plain, sender = harness.connect(b"a"), harness.connect(b"a"), harness.connect()
    want(harness, eager)
    send_all(harness, sender, numbered(0, 10))
    counters = harness.switch.counters()
    assert (counters.delivered_batches, counters.batched_packets) == (1, 10)
    assert harness.switch.connection_counters(eager).delivered_packets == 10
    ones = [harness.switch.connection_counters(number).delivered_bytes for number in (eager, plain)]
    assert ones[0] == ones[1]


# -- coming in


def test_a_batch_is_routed_as_its_packets_would_be(harness: SwitchHarness) -> None:
    reader, sender = harness.connect(b"a", b"b"), harness.connect()
    packets = [message(b"a", b"1"), b"SUB c", message(b"b", b""), b"CMSG pong\0x", message(b"c", b"own"), message(b"!/no")]
    harness.send(sender, join_batch(packets))
    harness.run()
    assert harness.receive(reader) == [packets[0], packets[2]]
    assert harness.receive(sender) == [packets[3], packets[4], b"CMSG !/bus/error\0RESERVED\0!/no"]
    counters = harness.switch.connection_counters(sender)
    assert (counters.received_packets, counters.refused_packets) == (6, 1)
    assert counters.received_bytes == sum(map(len, packets))
    assert harness.switch.counters().received_batches == 1


def test_a_batch_of_many_packets_is_handled_whole_and_in_order(harness: SwitchHarness) -> None:
    reader, sender = harness.connect(b"a"), harness.connect()
    want(harness, reader)
    packets = numbered(0, 10 * TURN_PACKETS + 7)
    send_all(harness, sender, [join_batch(packets), message(b"a", b"behind")])
    assert apart(harness.drain(reader)) == [*packets, message(b"a", b"behind")]


def test_a_batch_delays_others_no_longer_than_its_packets(harness: SwitchHarness) -> None:
    """Of a batch, no more is handled in a turn than of single packets."""
    reader, sender, other = harness.connect(b"a", b"b"), harness.connect(), harness.connect()
    harness.send(sender, join_batch(numbered(0, 20 * TURN_PACKETS)))
    harness.switch.turn(0)
    harness.send(other, message(b"b", b"in between"))
    harness.switch.turn(0)
    received = apart(harness.receive(reader))
    assert message(b"b", b"in between") in received
    assert len(received) <= 2 * TURN_PACKETS + 1
    harness.run()
    assert len(received) + len(harness.drain(reader)) == 20 * TURN_PACKETS + 1


def test_a_user_with_many_batches_shares_the_turn_with_others(make_harness: MakeHarness) -> None:
    """Connections with something left count as readable ones do: they share their user's batch while others can be read."""
    harness = make_harness(LimitSettings(turn_time=10.0))
    reader = harness.connect(b"a", b"b")
    want(harness, reader)
    many = [harness.connect() for _ in range(4)]
    other = harness.connect()
    for number, user in (*((each, ALICE) for each in many), (other, BOB)):
        harness.switch.set_party(number, user)
    for number in (*many, other):
        harness.send(number, join_batch(numbered(0, 8 * TURN_PACKETS, key=b"b" if number == other else b"a")))
    harness.switch.turn(0)
    received = apart(harness.receive(reader))
    assert len([packet for packet in received if packet.startswith(b"MSG a")]) == TURN_PACKETS
    assert len([packet for packet in received if packet.startswith(b"MSG b")]) == TURN_PACKETS
    harness.switch.turn(0)
    received = apart(harness.receive(reader))
    assert len([packet for packet in received if packet.startswith(b"MSG a")]) == TURN_PACKETS
    harness.drain(reader)


def test_a_receipt_within_a_batch_is_of_its_next_message(harness: SwitchHarness) -> None:
    sender = harness.connect(b"a")
    harness.connect(b"a")
    want(harness, sender)
    packets = [b"CMSG receipt/always\0one", message(b"a", b"1"), message(b"a", b"2"), b"CMSG receipt/undeliverable\0two", message(b"z")]
    harness.send(sender, join_batch(packets))
    harness.run()
    assert apart(harness.receive(sender)) == [packets[1], b"CMSG !/bus/receipt\0one\x002", packets[2], b"CMSG !/bus/receipt\0two\x000"]


def test_a_blocked_publisher_resumes_within_its_batch(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=8, low_water=50, block_timeout=600.0, progress_timeout=600.0))
    slow, sender, bystander = harness.connect(b"a", send_buffer=4_608), harness.connect(), harness.connect(b"b")
    for number in (slow, sender):
        harness.switch.set_party(number, ALICE)
    harness.configure(slow, hard=HardMode.BLOCK)
    packets = numbered(0, 6 * TURN_PACKETS, 200)
    harness.send(sender, join_batch(packets))
    harness.send(sender, message(b"b", b"behind"))
    harness.run()
    assert harness.switch.progress(slow).blocks == (sender,)
    assert harness.receive(bystander) == []
    assert harness.switch.connection_counters(slow).queued_packets <= 8 + TURN_PACKETS
    assert harness.drain(slow) == packets
    assert harness.receive(bystander) == [message(b"b", b"behind")]


def test_a_publisher_that_hangs_up_while_it_is_blocked_has_its_batch_delivered(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=8, block_timeout=600.0, progress_timeout=600.0))
    slow, sender = harness.connect(b"a", send_buffer=4_608), harness.connect()
    for number in (slow, sender):
        harness.switch.set_party(number, ALICE)
    harness.configure(slow, hard=HardMode.BLOCK)
    packets = numbered(0, 4 * TURN_PACKETS, 200)
    harness.send(sender, join_batch(packets))
    harness.run()
    assert harness.switch.progress(slow).blocks == (sender,)
    harness.hang_up(sender)
    assert harness.drain(slow) == packets
    assert ("ended", sender, End.HANGUP) in [report[:3] for report in harness.events]


def test_a_batch_is_delivered_whole_though_its_sender_leaves_at_once(harness: SwitchHarness) -> None:
    reader, sender = harness.connect(b"a"), harness.connect()
    packets = numbered(0, 5 * TURN_PACKETS)
    harness.send(sender, join_batch(packets))
    harness.hang_up(sender)
    harness.run()
    assert harness.drain(reader) == packets
    assert ("ended", sender, End.HANGUP) in [report[:3] for report in harness.events]


def test_a_batch_is_handled_whole_though_its_sender_shuts_down_sending(harness: SwitchHarness) -> None:
    sender = harness.connect(b"a")
    packets = numbered(0, 3 * TURN_PACKETS)
    harness.send(sender, join_batch(packets))
    harness.clients[sender].shutdown(socket.SHUT_WR)
    harness.run()
    assert harness.drain(sender) == packets
    assert harness.switch.connections() == [sender]


@pytest.mark.parametrize("is_asking", [False, True])
def test_a_batch_is_delivered_whole_though_its_sender_shuts_down_sending_and_then_closes(harness: SwitchHarness, is_asking: bool) -> None:
    """The bus finds that the sender has closed when it sends something to it, while the rest of the batch is not handled yet."""
    reader, sender = harness.connect(b"a"), harness.connect(b"a")
    packets = numbered(0, 5 * TURN_PACKETS)
    request = [b"CMSG ping\0x"] * is_asking
    harness.send(sender, join_batch([*packets[: 3 * TURN_PACKETS], *request, *packets[3 * TURN_PACKETS :]]))
    harness.clients[sender].shutdown(socket.SHUT_WR)
    harness.switch.turn(0)
    assert 0 < len(received := harness.receive(reader)) < 3 * TURN_PACKETS
    harness.hang_up(sender)
    harness.run()
    assert received + harness.drain(reader) == packets
    assert [report[:3] for report in harness.events if report[0] == "ended"] == [("ended", sender, End.HANGUP)]
    harness.check_balance()


def test_packets_after_one_that_ends_the_connection_are_not_handled(harness: SwitchHarness) -> None:
    reader, sender = harness.connect(b"a"), harness.connect()
    harness.send(sender, join_batch([message(b"a", b"1"), b"what?", message(b"a", b"2")]))
    harness.run()
    assert harness.receive(reader) == [message(b"a", b"1")]
    assert harness.receive(sender) == [b"CMSG !/bus/error\0EPROTO", b""]


FAULTS = [
    b"\1\2\3",
    struct.pack("<I", 5_000) + b"MSG a",
    bytes(4),
    b"\xff" * 4,
    struct.pack("<I", 13) + BATCH_HEAD,
    struct.pack("<I", 12) + BATCH_HEAD[:-1],
]


@pytest.mark.parametrize("count", [0, 1, TURN_PACKETS - 1, TURN_PACKETS, TURN_PACKETS + 1, 3 * TURN_PACKETS])
@pytest.mark.parametrize("fault", FAULTS)
def test_packets_of_a_malformed_batch_are_handled_up_to_the_fault(harness: SwitchHarness, count: int, fault: bytes) -> None:
    reader, sender = harness.connect(b"a"), harness.connect()
    packets = numbered(0, count)
    rest = fault + join_batch([message(b"a", b"behind")])[len(BATCH_HEAD) :]
    harness.send(sender, (join_batch(packets) if packets else BATCH_HEAD) + rest)
    harness.send(sender, message(b"a", b"the next packet"))
    harness.run()
    assert harness.drain(reader) == [*packets, message(b"a", b"the next packet")]
    assert [report for report in harness.events if report[0] == "malformed batch"] == [("malformed batch", sender, BATCH_HEAD + rest)]


def test_a_batch_of_the_maximum_packet_size_is_accepted_and_a_longer_one_rejected(harness: SwitchHarness) -> None:
    reader, sender = harness.connect(b"a"), harness.connect()
    harness.clients[sender].setsockopt(socket.SOL_SOCKET, 32, 1 << 20)  # SO_SNDBUFFORCE, where that is allowed
    filler = MAX_PACKET_BYTES - len(BATCH_HEAD) - 2 * LENGTH_BYTES - 2 * len(message(b"a"))
    packets = [message(b"a", bytes(filler)), message(b"a")]
    batch = join_batch(packets)
    assert len(batch) == MAX_PACKET_BYTES
    send_all(harness, sender, [batch])
    assert harness.drain(reader) == packets
    send_all(harness, sender, [batch + b"x"])
    assert harness.drain(reader) == []
    assert harness.drain(sender) == [b"CMSG !/bus/error\0TRUNCATED"]


def test_unhandled_packets_of_a_user_are_bounded_and_block_no_other_user(make_harness: MakeHarness) -> None:
    """A user who lets many connections be blocked within their batches cannot fill the memory of the bus."""
    harness = make_harness(LimitSettings(queue_packets=8, block_timeout=600.0, progress_timeout=600.0))
    slow, reader = harness.connect(b"a", send_buffer=4_608), harness.connect(b"b")
    harness.switch.set_party(slow, ALICE)
    harness.configure(slow, soft=SoftMode.BLOCK)
    harness.switch.set_party(reader, BOB)
    batch = join_batch(numbered(0, 1_400, 80))
    senders = []
    for _ in range(2 * UNREAD_BYTES // len(batch)):
        senders.append(harness.connect())
        harness.switch.set_party(senders[-1], ALICE)
        harness.send(senders[-1], batch)
        harness.run()
    packets, queues = harness.switch.queues()
    held = sum(len(packets[place]) for queue in queues.values() for place, _ in queue.unread)
    assert UNREAD_BYTES - 2 * len(batch) < held < UNREAD_BYTES + 2 * len(batch)
    other_user = harness.connect()
    harness.switch.set_party(other_user, BOB)
    harness.send(other_user, join_batch(numbered(0, 100, key=b"b")))
    harness.run()
    assert harness.receive(reader) == numbered(0, 100, key=b"b")
    assert len(harness.drain(slow)) == 1_400 * len(senders)


# -- restarts


def test_a_restart_in_the_middle_of_a_batch_loses_and_doubles_nothing(harness: SwitchHarness) -> None:
    reader, sender = harness.connect(b"a"), harness.connect()
    harness.set_party(sender, ALICE)
    want(harness, reader)
    packets = numbered(0, 5 * TURN_PACKETS)
    harness.send(sender, join_batch(packets))
    harness.send(sender, message(b"a", b"behind"))
    for _ in range(3):
        harness.switch.turn(0)
        harness.hand_over()
    assert any(queue.unread for queue in harness.switch.queues()[1].values())
    assert apart(harness.drain(reader)) == [*packets, message(b"a", b"behind")]
    assert harness.switch.settings(reader).batch
    assert not harness.switch.settings(sender).batch
    assert harness.switch.counters().received_batches == 1


# -- the broker


def test_a_packet_that_is_shorter_than_the_head_of_a_batch_counts_as_none(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(turn_time=0.0))
    # The second packet is put back, because the first one takes longer than a turn.
    send_all(harness, harness.connect(), [b"CMSG ping", BATCH_HEAD[:-1]])
    assert harness.switch.counters().received_batches == 0


def test_a_malformed_batch_is_an_error_that_names_the_fault_and_the_connection_stays(bus: InProcessBus) -> None:
    client = bus.client()
    client.send(b"CMSG !/batch")
    client.send(BATCH_HEAD + struct.pack("<I", 9) + b"MSG a\0")
    client.send(join_batch([b"SUB a"]) + struct.pack("<I", 13) + BATCH_HEAD)
    reported = client.barrier()
    assert [error_code(packet) for packet in reported] == ["EINVAL"] * 3
    words = [packet.partition(b" ")[2].partition(b" ")[2] for packet in reported]
    faults = (b"it contains no packet", b"6 bytes left for a packet of 9 bytes", b"it contains another batch")
    assert words == [b"malformed batch: " + fault for fault in faults]
    client.publish(b"a", b"still here")
    assert client.barrier() == [message(b"a", b"still here")]


def test_control_packets_in_a_batch_are_charged_as_single_ones(make_bus: MakeBus) -> None:
    quotas = QuotaSettings(control_rate=1, control_burst=20)
    bus = make_bus(DaemonSettings(quotas=quotas))
    client = bus.client(uid=ALICE)
    client.send(join_batch([b"CMSG !/bus/ping\0%d" % number for number in range(40)]))
    answers = client.receive_all()
    assert len(answers) == 40
    assert 15 <= len([packet for packet in answers if packet.startswith(b"CMSG !/bus/ping")]) < 40
    assert {error_code(packet) for packet in answers if packet.startswith(b"CMSG !/bus/error")} == {"EDQUOT"}


def test_the_connection_list_says_which_clients_enable_batches(bus: InProcessBus) -> None:
    client = bus.client()
    client.control(controls.BATCH_ON)
    listed = client.ask_json(controls.CONNECTIONS)["connections"]
    assert isinstance(listed, list)
    assert [each["batch"] for each in listed] == [True]
    assert b"batch" in client.ask(controls.FEATURES).split(b"\n")
    client.control(controls.BATCH_OFF)
    listed = client.ask_json(controls.CONNECTIONS)["connections"]
    assert isinstance(listed, list)
    assert [each["batch"] for each in listed] == [False]
