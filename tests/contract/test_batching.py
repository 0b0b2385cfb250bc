"""Batches: what goes out together, what is taken apart, and that neither changes anything else."""

from __future__ import annotations

import socket
import struct

import pytest

from sbusd.config.quotas import QuotaSettings
from sbusd.config.settings import DaemonSettings, LimitSettings
from sbusd.dataplane.contract import UNREAD_BYTES, End, HardMode, Order, SoftMode
from sbusd.protocol import controls
from sbusd.protocol.batches import BATCH_HEAD, LENGTH_BYTES, is_batch, join_batch, parse_batch
from sbusd.protocol.limits import MAX_BATCH_BYTES, MAX_PACKET_BYTES
from tests.support.parlour import MakeParlour, Parlour
from tests.support.wire import error_code, message
from tests.support.world import MakeWorld, World

ALICE, BOB = 1_000, 1_001
TURN_PACKETS = LimitSettings().batch_packets


def numbered(first: int, count: int, size: int = 0, key: bytes = b"a") -> list[bytes]:
    """Return messages that can be told apart."""
    return [message(key, b"%06d " % number + bytes(size)) for number in range(first, first + count)]


def apart(packets: list[bytes]) -> list[bytes]:
    """Return packets as they would have come without batches."""
    return [inner for packet in packets for inner in (parse_batch(packet) if is_batch(packet) else [packet])]


def want(world: World, client: int, on: bool = True) -> None:
    """Let a client want batches, or not."""
    world.send(client, b"CMSG batch/on" if on else b"CMSG batch/off")
    world.run()


def send_all(world: World, sender: int, packets: list[bytes]) -> None:
    """Send packets that the switch finds together."""
    for packet in packets:
        assert world.send(sender, packet)
    world.run()


# -- going out


def test_what_is_there_together_goes_in_one_packet_to_who_wants_that(world: World) -> None:
    eager, plain, sender = world.connect(b"a"), world.connect(b"a"), world.connect()
    want(world, eager)
    packets = numbered(0, 10)
    send_all(world, sender, packets)
    assert world.receive(eager) == [join_batch(packets)]
    assert world.receive(plain) == packets
    want(world, eager, on=False)
    send_all(world, sender, packets)
    assert world.receive(eager) == packets


def test_what_is_alone_goes_at_once_and_as_it_is(world: World) -> None:
    eager, sender = world.connect(b"a"), world.connect()
    want(world, eager)
    for packet in numbered(0, 3):
        send_all(world, sender, [packet])
        assert world.receive(eager) == [packet]
    assert world.switch.counters().delivered_batches == 0


def test_it_holds_for_what_waits_too_and_from_its_place_on(world: World) -> None:
    slow, sender = world.connect(b"a", send_buffer=20_000), world.connect()
    packets = numbered(0, 40, 2_000)
    for packet in packets:
        send_all(world, sender, [packet])
    want(world, slow)
    received = world.drain(slow)
    assert apart(received) == packets
    assert any(is_batch(packet) for packet in received)
    assert not is_batch(received[0])


def test_the_bus_s_own_words_go_in_their_place_among_messages(world: World) -> None:
    client = world.connect(b"a")
    want(world, client)
    send_all(
        world, client, [*numbered(0, 2), message(b"!/no"), b"CMSG receipt/always\0t", *numbered(2, 1), b"CMSG pong\0", *numbered(3, 2)]
    )
    received = apart(world.receive(client))
    heads = [packet[:18] for packet in received]
    assert heads == [message(b"a", b"%06d " % 0)[:18], message(b"a", b"%06d " % 1)[:18], b"CMSG !/bus/error\0R",
                     message(b"a", b"%06d " % 2)[:18], b"CMSG !/bus/receipt", b"CMSG pong\0", *numbered(3, 2)]  # fmt: skip


def test_refusals_that_come_together_go_together(world: World) -> None:
    client = world.connect()
    want(world, client)
    send_all(world, client, [message(b"!/no"), message(b"k" * 5_000), message(b"!/no")])
    (received,) = world.receive(client)
    assert [packet[17:] for packet in parse_batch(received)] == [b"RESERVED", b"KEY_TOO_LONG", b"RESERVED"]


def test_senders_and_taps_come_in_batches_with_their_heads(world: World) -> None:
    curious, tapper, sender = world.connect(b"a"), world.connect(), world.connect()
    world.switch.set_party(sender, ALICE, cred=b"!/cred/1/2/3")
    for client, wish in ((curious, b"CMSG sender/on"), (tapper, b"CMSG tap/on\0")):
        world.send(client, wish)
        want(world, client)
    packets = numbered(0, 5)
    send_all(world, sender, packets)
    (received,) = world.receive(curious)
    assert list(parse_batch(received)) == [b"CMSG !/from/%d/!/cred/1/2/3\0%b" % (sender, packet) for packet in packets]
    (told,) = world.receive(tapper)
    assert [packet.partition(b"\n")[2] for packet in parse_batch(told)] == packets


def test_a_batch_has_a_largest_size_and_what_fits_into_none_goes_alone(world: World) -> None:
    eager, sender = world.connect(b"a"), world.connect()
    want(world, eager)
    for size in (MAX_BATCH_BYTES // 2 - 100, MAX_BATCH_BYTES // 2, MAX_BATCH_BYTES, 150_000):
        packets = [*numbered(0, 2, size), *numbered(2, 3)]
        send_all(world, sender, packets)
        received = world.drain(eager)
        assert apart(received) == packets
        assert all(len(packet) <= MAX_BATCH_BYTES for packet in received if is_batch(packet))
        assert is_batch(received[0]) is (size < MAX_BATCH_BYTES // 2 - 50)
    exact = (MAX_BATCH_BYTES - len(BATCH_HEAD)) // 2 - LENGTH_BYTES - len(message(b"a"))
    packets = [message(b"a", bytes(exact)), message(b"a", bytes(exact + 1))]
    send_all(world, sender, packets)
    assert [len(packet) for packet in world.receive(eager)] == [MAX_BATCH_BYTES]


def test_a_batch_that_no_socket_of_this_size_takes_is_made_smaller(world: World) -> None:
    eager, sender = world.connect(b"a", send_buffer=4_608), world.connect()
    want(world, eager)
    packets = numbered(0, 60, 400)
    send_all(world, sender, packets)
    received = world.drain(eager)
    assert apart(received) == packets
    assert any(is_batch(packet) for packet in received)
    assert world.switch.connection_counters(eager).lost_packets == 0


def test_a_packet_too_large_for_the_socket_is_lost_alone_and_told_in_its_place(world: World) -> None:
    eager, sender = world.connect(b"a", send_buffer=20_000), world.connect()
    want(world, eager)
    packets = [*numbered(0, 2), message(b"a", bytes(100_000)), *numbered(2, 2)]
    send_all(world, sender, packets)
    assert apart(world.drain(eager)) == [*packets[:2], b"CMSG !/bus/lost\x001", *packets[3:]]


@pytest.mark.parametrize("order", [Order.QUEUE, Order.STACK, Order.RANDOM])
def test_what_waits_is_counted_and_lost_by_packets_in_every_order(make_world: MakeWorld, order: Order) -> None:
    world = make_world(LimitSettings(queue_packets=20))
    slow, sender = world.connect(b"a", send_buffer=4_608), world.connect()
    world.configure(slow, order=order)
    world.configure(slow, hard=HardMode.DISCARD)
    want(world, slow)
    for packet in numbered(0, 60, 1_000):
        send_all(world, sender, [packet])
    counters = world.switch.connection_counters(slow)
    assert counters.queued_packets == 20
    assert counters.lost_packets + counters.queued_packets + counters.delivered_packets == 60
    received = apart(world.drain(slow))
    lost = [int(packet.partition(b"\0")[2]) for packet in received if packet.startswith(b"CMSG !/bus/lost")]
    assert sum(lost) == counters.lost_packets
    assert len(received) - len(lost) == 60 - counters.lost_packets


def test_batches_and_what_is_in_them_are_counted_as_if_each_had_gone_alone(world: World) -> None:
    eager, plain, sender = world.connect(b"a"), world.connect(b"a"), world.connect()
    want(world, eager)
    send_all(world, sender, numbered(0, 10))
    counters = world.switch.counters()
    assert (counters.delivered_batches, counters.batched_packets) == (1, 10)
    assert world.switch.connection_counters(eager).delivered_packets == 10
    ones = [world.switch.connection_counters(number).delivered_bytes for number in (eager, plain)]
    assert ones[0] == ones[1]


# -- coming in


def test_a_batch_is_routed_as_its_packets_would_be(world: World) -> None:
    reader, sender = world.connect(b"a", b"b"), world.connect()
    packets = [message(b"a", b"1"), b"SUB c", message(b"b", b""), b"CMSG pong\0x", message(b"c", b"own"), message(b"!/no")]
    world.send(sender, join_batch(packets))
    world.run()
    assert world.receive(reader) == [packets[0], packets[2]]
    assert world.receive(sender) == [packets[3], packets[4], b"CMSG !/bus/error\0RESERVED"]
    counters = world.switch.connection_counters(sender)
    assert (counters.received_packets, counters.refused_packets) == (6, 1)
    assert counters.received_bytes == sum(map(len, packets))
    assert world.switch.counters().received_batches == 1


def test_a_batch_of_many_packets_is_handled_whole_and_in_order(world: World) -> None:
    reader, sender = world.connect(b"a"), world.connect()
    want(world, reader)
    packets = numbered(0, 10 * TURN_PACKETS + 7)
    send_all(world, sender, [join_batch(packets), message(b"a", b"behind")])
    assert apart(world.drain(reader)) == [*packets, message(b"a", b"behind")]


def test_nobody_waits_longer_for_a_batch_than_for_its_packets(world: World) -> None:
    """Of a batch, no more is handled in a turn than of single packets."""
    reader, sender, other = world.connect(b"a", b"b"), world.connect(), world.connect()
    world.send(sender, join_batch(numbered(0, 20 * TURN_PACKETS)))
    world.switch.turn(0)
    world.send(other, message(b"b", b"in between"))
    world.switch.turn(0)
    received = apart(world.receive(reader))
    assert message(b"b", b"in between") in received
    assert len(received) <= 2 * TURN_PACKETS + 1
    world.run()
    assert len(received) + len(world.drain(reader)) == 20 * TURN_PACKETS + 1


def test_a_user_with_many_batches_shares_the_turn_with_others(make_world: MakeWorld) -> None:
    """Connections with something left count as readable ones do: they share their user's batch while others can be read."""
    world = make_world(LimitSettings(turn_time=10.0))
    reader = world.connect(b"a", b"b")
    want(world, reader)
    many = [world.connect() for _ in range(4)]
    other = world.connect()
    for number, user in (*((each, ALICE) for each in many), (other, BOB)):
        world.switch.set_party(number, user)
    for number in (*many, other):
        world.send(number, join_batch(numbered(0, 8 * TURN_PACKETS, key=b"b" if number == other else b"a")))
    world.switch.turn(0)
    received = apart(world.receive(reader))
    assert len([packet for packet in received if packet.startswith(b"MSG a")]) == TURN_PACKETS
    assert len([packet for packet in received if packet.startswith(b"MSG b")]) == TURN_PACKETS
    world.switch.turn(0)
    received = apart(world.receive(reader))
    assert len([packet for packet in received if packet.startswith(b"MSG a")]) == TURN_PACKETS
    world.drain(reader)


def test_a_receipt_within_a_batch_is_of_its_next_message(world: World) -> None:
    sender = world.connect(b"a")
    world.connect(b"a")
    want(world, sender)
    packets = [b"CMSG receipt/always\0one", message(b"a", b"1"), message(b"a", b"2"), b"CMSG receipt/undeliverable\0two", message(b"z")]
    world.send(sender, join_batch(packets))
    world.run()
    assert apart(world.receive(sender)) == [packets[1], b"CMSG !/bus/receipt\0one\x002", packets[2], b"CMSG !/bus/receipt\0two\x000"]


def test_a_blocked_publisher_goes_on_where_it_was_in_its_batch(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(queue_packets=8, low_water=50, block_timeout=600.0, progress_timeout=600.0))
    slow, sender, bystander = world.connect(b"a", send_buffer=4_608), world.connect(), world.connect(b"b")
    for number in (slow, sender):
        world.switch.set_party(number, ALICE)
    world.configure(slow, hard=HardMode.BLOCK)
    packets = numbered(0, 6 * TURN_PACKETS, 200)
    world.send(sender, join_batch(packets))
    world.send(sender, message(b"b", b"behind"))
    world.run()
    assert world.switch.progress(slow).blocks == (sender,)
    assert world.receive(bystander) == []
    assert world.switch.connection_counters(slow).queued_packets <= 8 + TURN_PACKETS
    assert world.drain(slow) == packets
    assert world.receive(bystander) == [message(b"b", b"behind")]


def test_a_publisher_that_hangs_up_while_it_is_blocked_has_its_batch_delivered(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(queue_packets=8, block_timeout=600.0, progress_timeout=600.0))
    slow, sender = world.connect(b"a", send_buffer=4_608), world.connect()
    for number in (slow, sender):
        world.switch.set_party(number, ALICE)
    world.configure(slow, hard=HardMode.BLOCK)
    packets = numbered(0, 4 * TURN_PACKETS, 200)
    world.send(sender, join_batch(packets))
    world.run()
    assert world.switch.progress(slow).blocks == (sender,)
    world.hang_up(sender)
    assert world.drain(slow) == packets
    assert ("ended", sender, End.HANGUP) in [report[:3] for report in world.told]


def test_a_batch_is_delivered_whole_though_its_sender_leaves_at_once(world: World) -> None:
    reader, sender = world.connect(b"a"), world.connect()
    packets = numbered(0, 5 * TURN_PACKETS)
    world.send(sender, join_batch(packets))
    world.hang_up(sender)
    world.run()
    assert world.drain(reader) == packets
    assert ("ended", sender, End.HANGUP) in [report[:3] for report in world.told]


def test_a_batch_is_handled_whole_though_its_sender_shuts_down_sending(world: World) -> None:
    sender = world.connect(b"a")
    packets = numbered(0, 3 * TURN_PACKETS)
    world.send(sender, join_batch(packets))
    world.clients[sender].shutdown(socket.SHUT_WR)
    world.run()
    assert world.drain(sender) == packets
    assert world.switch.connections() == [sender]


def test_what_follows_a_packet_that_ends_the_connection_is_not_handled(world: World) -> None:
    reader, sender = world.connect(b"a"), world.connect()
    world.send(sender, join_batch([message(b"a", b"1"), b"what?", message(b"a", b"2")]))
    world.run()
    assert world.receive(reader) == [message(b"a", b"1")]
    assert world.receive(sender) == [b"CMSG !/bus/error\0EPROTO", b""]


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
def test_of_a_malformed_batch_what_stands_in_front_of_the_fault_is_handled_and_nothing_behind(
    world: World, count: int, fault: bytes
) -> None:
    reader, sender = world.connect(b"a"), world.connect()
    packets = numbered(0, count)
    rest = fault + join_batch([message(b"a", b"behind")])[len(BATCH_HEAD) :]
    world.send(sender, (join_batch(packets) if packets else BATCH_HEAD) + rest)
    world.send(sender, message(b"a", b"the next packet"))
    world.run()
    assert world.drain(reader) == [*packets, message(b"a", b"the next packet")]
    assert [report for report in world.told if report[0] == "malformed batch"] == [("malformed batch", sender, BATCH_HEAD + rest)]


def test_a_batch_as_long_as_a_packet_may_be_is_taken_and_a_longer_one_refused(world: World) -> None:
    reader, sender = world.connect(b"a"), world.connect()
    world.clients[sender].setsockopt(socket.SOL_SOCKET, 32, 1 << 20)  # SO_SNDBUFFORCE, where that is allowed
    filler = MAX_PACKET_BYTES - len(BATCH_HEAD) - 2 * LENGTH_BYTES - 2 * len(message(b"a"))
    packets = [message(b"a", bytes(filler)), message(b"a")]
    batch = join_batch(packets)
    assert len(batch) == MAX_PACKET_BYTES
    send_all(world, sender, [batch])
    assert world.drain(reader) == packets
    send_all(world, sender, [batch + b"x"])
    assert world.drain(reader) == []
    assert world.drain(sender) == [b"CMSG !/bus/error\0TRUNCATED"]


def test_what_one_user_has_unhandled_is_bounded_and_stands_in_nobody_else_s_way(make_world: MakeWorld) -> None:
    """A user who lets many connections be blocked within their batches cannot fill the memory of the bus."""
    world = make_world(LimitSettings(queue_packets=8, block_timeout=600.0, progress_timeout=600.0))
    slow, reader = world.connect(b"a", send_buffer=4_608), world.connect(b"b")
    world.switch.set_party(slow, ALICE)
    world.configure(slow, soft=SoftMode.BLOCK)
    world.switch.set_party(reader, BOB)
    batch = join_batch(numbered(0, 1_400, 80))
    senders = []
    for _ in range(2 * UNREAD_BYTES // len(batch)):
        senders.append(world.connect())
        world.switch.set_party(senders[-1], ALICE)
        world.send(senders[-1], batch)
        world.run()
    packets, queues = world.switch.queues()
    held = sum(len(packets[place]) for queue in queues.values() for place, _ in queue.unread)
    assert UNREAD_BYTES - 2 * len(batch) < held < UNREAD_BYTES + 2 * len(batch)
    stranger = world.connect()
    world.switch.set_party(stranger, BOB)
    world.send(stranger, join_batch(numbered(0, 100, key=b"b")))
    world.run()
    assert world.receive(reader) == numbered(0, 100, key=b"b")
    assert len(world.drain(slow)) == 1_400 * len(senders)


# -- restarts


def test_a_restart_in_the_middle_of_a_batch_loses_and_doubles_nothing(world: World) -> None:
    reader, sender = world.connect(b"a"), world.connect()
    world.set_party(sender, ALICE)
    want(world, reader)
    packets = numbered(0, 5 * TURN_PACKETS)
    world.send(sender, join_batch(packets))
    world.send(sender, message(b"a", b"behind"))
    for _ in range(3):
        world.switch.turn(0)
        world.hand_over()
    assert any(queue.unread for queue in world.switch.queues()[1].values())
    assert apart(world.drain(reader)) == [*packets, message(b"a", b"behind")]
    assert world.switch.settings(reader).batch
    assert not world.switch.settings(sender).batch
    assert world.switch.counters().received_batches == 1


# -- the broker


def test_a_malformed_batch_is_an_error_that_names_the_fault_and_the_connection_stays(parlour: Parlour) -> None:
    guest = parlour.guest()
    guest.send(b"CMSG !/batch")
    guest.send(BATCH_HEAD + struct.pack("<I", 9) + b"MSG a\0")
    guest.send(join_batch([b"SUB a"]) + struct.pack("<I", 13) + BATCH_HEAD)
    told = guest.barrier()
    assert [error_code(packet) for packet in told] == ["EINVAL"] * 3
    words = [packet.partition(b" ")[2].partition(b" ")[2] for packet in told]
    faults = (b"it contains no packet", b"6 bytes left for a packet of 9 bytes", b"it contains another batch")
    assert words == [b"malformed batch: " + fault for fault in faults]
    guest.publish(b"a", b"still here")
    assert guest.barrier() == [message(b"a", b"still here")]


def test_control_packets_in_a_batch_are_charged_as_single_ones(make_parlour: MakeParlour) -> None:
    quotas = QuotaSettings(control_rate=1, control_burst=20)
    parlour = make_parlour(DaemonSettings(quotas=quotas))
    guest = parlour.guest(uid=ALICE)
    guest.send(join_batch([b"CMSG !/bus/ping\0%d" % number for number in range(40)]))
    answers = guest.receive_all()
    assert len(answers) == 40
    assert 15 <= len([packet for packet in answers if packet.startswith(b"CMSG !/bus/ping")]) <= 25
    assert {error_code(packet) for packet in answers if packet.startswith(b"CMSG !/bus/error")} == {"EDQUOT"}


def test_who_wants_batches_is_told_where_connections_are(parlour: Parlour) -> None:
    guest = parlour.guest()
    guest.control(controls.BATCH_ON)
    listed = guest.ask_json(controls.CONNECTIONS)["connections"]
    assert isinstance(listed, list)
    assert [each["batch"] for each in listed] == [True]
    assert b"batch" in guest.ask(controls.FEATURES).split(b"\n")
    guest.control(controls.BATCH_OFF)
    listed = guest.ask_json(controls.CONNECTIONS)["connections"]
    assert isinstance(listed, list)
    assert [each["batch"] for each in listed] == [False]
