"""Receipts: what became of one message, told in its place among the publisher's packets."""

from __future__ import annotations

import pytest

from sbusd.config.settings import LimitSettings
from sbusd.dataplane.contract import PublishRule, Refusal
from sbusd.protocol.batches import join_batch
from sbusd.protocol.keys import KeySpace
from sbusd.protocol.limits import MAX_PACKET_BYTES
from tests.support.wire import message
from tests.support.world import REFUSALS, MakeWorld, World


def receipt(token: bytes, recipients: int) -> bytes:
    """Return a receipt as the bus sends it."""
    return b"CMSG !/bus/receipt\0%b\0%d" % (token, recipients)


def publish(world: World, sender: int, *packets: bytes) -> list[bytes]:
    """Send packets as one batch and return what comes of them for the sender."""
    for packet in packets:
        assert world.send(sender, packet)
    world.run()
    return world.receive(sender)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_receipt_counts_who_got_the_message(world: World, count: int) -> None:
    for _ in range(count):
        world.connect(b"a", b"*", b"a")
    sender = world.connect()
    assert publish(world, sender, b"CMSG receipt/always\0t", message(b"a", b"1")) == [receipt(b"t", count)]


def test_receipt_of_what_is_undeliverable_is_silent_when_somebody_gets_it(world: World) -> None:
    hearer, sender = world.connect(b"a"), world.connect()
    demand = b"CMSG receipt/undeliverable\0t"
    assert publish(world, sender, demand, message(b"a", b"1")) == []
    assert world.receive(hearer) == [message(b"a", b"1")]
    # That message used the demand up.
    assert publish(world, sender, message(b"b", b"2")) == []
    assert publish(world, sender, demand, message(b"b", b"3"), message(b"b", b"4")) == [receipt(b"t", 0)]


def test_receipt_stands_between_what_came_before_and_what_comes_after(world: World) -> None:
    sender = world.connect(b"")
    sent = [message(b"a", b"1"), b"CMSG receipt/always\0x", message(b"a", b"2"), message(b"a", b"3"), b"CMSG pong\0"]
    assert publish(world, sender, *sent) == [sent[0], sent[2], receipt(b"x", 1), sent[3], sent[4]]


def test_own_message_counts_only_with_echo(world: World) -> None:
    sender = world.connect(b"a")
    assert publish(world, sender, b"CMSG echo/off", b"CMSG receipt/always\0x", message(b"a", b"1")) == [receipt(b"x", 0)]


def test_a_further_demand_takes_the_place_of_the_first(world: World) -> None:
    sender = world.connect()
    demands = [b"CMSG receipt/always\0x", b"CMSG receipt/undeliverable\0y", b"CMSG receipt/always"]
    assert publish(world, sender, *demands, message(b"a", b"1")) == [receipt(b"", 0)]


def test_each_message_has_a_receipt_of_its_own(world: World) -> None:
    hearer, sender = world.connect(b"a"), world.connect()
    wanted = []
    for number in range(40):
        key, token = (b"a", b"b")[number % 2], b"%d" % number
        wanted.append(receipt(token, 1 - number % 2))
        world.send(sender, b"CMSG receipt/always\0" + token)
        world.send(sender, message(key, token))
    world.run()
    assert world.receive(sender) == wanted
    assert len(world.receive(hearer)) == 20


@pytest.mark.parametrize(
    ("packet", "refusal"),
    [
        (message(b"!/bus/x", b""), b"RESERVED"),
        (message(b"!/event/connect/1", b""), b"RESERVED"),
        (message(b"k" * 4_097, b""), b"KEY_TOO_LONG"),
        (message(b"closed", b""), b"POLICY"),
    ],
)
def test_refused_message_has_its_error_and_then_no_recipients(world: World, packet: bytes, refusal: bytes) -> None:
    sender = world.connect(b"*")
    world.switch.set_party(sender, 7, rules=1)
    world.switch.set_publish_rules((PublishRule(b"closed", False),))
    error = b"CMSG !/bus/error\0" + refusal
    assert publish(world, sender, b"CMSG receipt/always\0t", packet) == [error, receipt(b"t", 0)]
    assert publish(world, sender, b"CMSG receipt/undeliverable\0t", packet, message(b"a", b"")) == [
        *[error, receipt(b"t", 0)],
        message(b"a", b""),
    ]


def test_message_that_was_cut_has_its_receipt_and_another_packet_that_was_cut_does_not_use_it_up(world: World) -> None:
    sender = world.connect()
    error = REFUSALS[Refusal.TRUNCATED]
    assert publish(world, sender, b"CMSG receipt/always\0t", b"SUB " + b"x" * MAX_PACKET_BYTES) == [error]
    assert publish(world, sender, b"MSG a\0" + b"x" * MAX_PACKET_BYTES) == [error, receipt(b"t", 0)]


def test_waiting_recipients_count_and_those_that_lose_it_do_not(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(queue_packets=2))
    world.connect(b"a", send_buffer=20_000)
    sender = world.connect()
    told = []
    for number in range(60):
        told += publish(world, sender, b"CMSG receipt/always\0%d" % number, message(b"a", bytes(4_000)))
    counts = [int(packet.rsplit(b"\0")[-1]) for packet in told]
    lost = world.switch.counters().lost_packets
    assert lost > 0
    assert counts == [1] * (60 - lost) + [0] * lost


def test_packet_that_never_fits_and_a_peer_that_is_gone_are_no_recipients(world: World) -> None:
    small = world.connect(b"a", send_buffer=5_000)
    sender = world.connect()
    assert publish(world, sender, b"CMSG receipt/always\0t", message(b"a", bytes(100_000))) == [receipt(b"t", 0)]
    assert b"CMSG !/bus/lost\x001" in world.receive(small)
    world.clients[small].shutdown(2)
    world.clients[small].close()
    del world.clients[small]
    assert publish(world, sender, b"CMSG receipt/always\0t", message(b"a", b"1")) == [receipt(b"t", 0)]


def test_receipt_waits_with_what_the_publisher_does_not_read(world: World) -> None:
    sender = world.connect(b"a", send_buffer=20_000)
    sent = []
    for number in range(60):
        sent += [b"CMSG receipt/always\0%d" % number, message(b"a", b"%d " % number + bytes(2_000))]
        for packet in sent[-2:]:
            world.send(sender, packet)
            world.run()
    received = world.drain(sender)
    assert received == [packet for number in range(60) for packet in (sent[2 * number + 1], receipt(b"%d" % number, 1))]


def test_demand_ends_with_its_connection_and_is_nobody_else_s(world: World) -> None:
    first, second = world.connect(), world.connect()
    publish(world, first, b"CMSG receipt/always\0t")
    assert publish(world, second, message(b"a", b"1")) == []
    world.hang_up(first)
    world.run()
    third = world.connect()
    assert publish(world, third, message(b"a", b"1")) == []


@pytest.mark.parametrize("token", [b"", b"x" * 128, bytes(range(1, 128))])
def test_token_comes_back_as_it_was(world: World, token: bytes) -> None:
    sender = world.connect()
    assert publish(world, sender, b"CMSG receipt/always\0" + token, message(b"a", b"")) == [receipt(token, 0)]


SECRET = b"!/cred//7//x"
WITHHELD = b"CMSG !/bus/receipt\0t\0-"


@pytest.mark.parametrize("demand", [b"always", b"undeliverable"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_stranger_does_not_learn_whether_a_secret_key_has_recipients(world: World, demand: bytes, count: int) -> None:
    recipients = [world.connect(SECRET) for _ in range(count)]
    stranger = world.connect()
    world.strangers.add(stranger)
    assert publish(world, stranger, b"CMSG receipt/%b\0t" % demand, message(SECRET, b"1")) == [WITHHELD]
    assert [world.receive(each) for each in recipients] == [[message(SECRET, b"1")]] * count
    # It was asked about that message alone.
    assert publish(world, stranger, message(SECRET, b"2"), b"CMSG receipt/always\0t", message(b"a", b"")) == [receipt(b"t", 0)]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_confidant_learns_how_many_got_a_secret(world: World, count: int) -> None:
    for _ in range(count):
        world.connect(SECRET)
    sender = world.connect()
    assert publish(world, sender, b"CMSG receipt/always\0t", message(SECRET, b"1")) == [receipt(b"t", count)]
    silent: list[bytes] = [] if count else [receipt(b"t", 0)]
    assert publish(world, sender, b"CMSG receipt/undeliverable\0t", message(SECRET, b"1")) == silent


def test_what_is_withheld_keeps_its_place_in_a_batch_too(world: World) -> None:
    hearer, stranger = world.connect(SECRET, b"a"), world.connect(b"a")
    world.strangers.add(stranger)
    sent = [message(b"a", b"1"), b"CMSG receipt/always\0t", message(b"a", b"2"), b"CMSG receipt/undeliverable\0t", message(SECRET, b"3")]
    sent += [message(SECRET, b"4"), b"CMSG pong\0", message(b"a", b"5")]
    expected = [sent[0], sent[2], receipt(b"t", 2), WITHHELD, b"CMSG pong\0", sent[7]]
    for packets in ([*sent], [join_batch(sent)]):
        assert publish(world, stranger, *packets) == expected
        assert world.receive(hearer) == [sent[place] for place in (0, 2, 4, 5, 7)]


def test_a_decision_that_takes_longer_than_a_turn_is_kept_for_its_message(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(turn_time=1e-5))
    hearer, stranger = world.connect(SECRET), world.connect()
    world.strangers.add(stranger)
    sent = [packet for number in range(40) for packet in (b"CMSG receipt/always\0%d" % number, message(SECRET, b"%d" % number))]
    for packets in (sent, [join_batch(sent)]):
        assert publish(world, stranger, *packets) == [b"CMSG !/bus/receipt\0%d\0-" % number for number in range(40)]
        assert world.receive(hearer) == sent[1::2]


def test_a_sender_that_is_ended_in_front_of_its_message_has_not_sent_it(make_world: MakeWorld) -> None:
    """What was before the message is handed over first, and the error of a packet that was cut does not fit."""
    world = make_world(LimitSettings(queue_packets=1))
    hearer, sender = world.connect(SECRET), world.connect(b"fill", send_buffer=5_000)
    world.send(sender, b"CMSG blocking/hard/error")
    filler = world.connect()
    while not world.switch.connection_counters(sender).queued_packets:
        publish(world, filler, message(b"fill", bytes(1_000)))
    for packet in (b"CMSG receipt/always\0t", b"SUB " + b"x" * MAX_PACKET_BYTES, message(SECRET, b"1")):
        world.send(sender, packet)
    world.run()
    assert sender not in world.switch.connections()
    assert world.receive(hearer) == []


def test_a_refused_message_to_a_secret_key_says_nothing_of_who_listens(world: World) -> None:
    world.connect(SECRET)
    stranger = world.connect()
    world.strangers.add(stranger)
    world.switch.set_party(stranger, 7, rules=1)
    world.switch.set_publish_rules((PublishRule(SECRET, False),))
    for key, refusal in ((SECRET, b"POLICY"), (b"!/cred//7", b"RESERVED")):
        error = b"CMSG !/bus/error\0" + refusal
        assert publish(world, stranger, b"CMSG receipt/always\0t", message(key)) == [error, receipt(b"t", 0)]


def test_without_secret_keys_nothing_is_withheld(make_world: MakeWorld) -> None:
    world = make_world(keyspace=KeySpace(b"."))
    world.connect(SECRET)
    sender = world.connect()
    world.strangers.add(sender)
    assert publish(world, sender, b"CMSG receipt/always\0t", message(SECRET)) == [receipt(b"t", 1)]


def test_a_further_demand_asks_again_whether_it_may_be_told(world: World) -> None:
    world.connect(SECRET)
    sender = world.connect()
    world.strangers.add(sender)
    assert publish(world, sender, b"CMSG receipt/always\0t", message(SECRET)) == [WITHHELD]
    world.strangers.clear()
    assert publish(world, sender, b"CMSG receipt/always\0t", message(SECRET)) == [receipt(b"t", 1)]


def test_what_a_tap_of_another_user_loses_is_no_recipient(world: World) -> None:
    tap, sender = world.connect(), world.connect()
    world.set_party(tap, 1)
    world.set_party(sender, 2)
    world.set_user_limits(1, 1, 300_000)
    world.send(tap, b"CMSG tap/on\0")
    world.run()
    for _ in range(6):
        world.send(sender, b"MSG a\0" + bytes(150_000))
        world.run()
    world.send(sender, b"CMSG receipt/undeliverable\0t")
    world.send(sender, b"MSG a\0")
    world.run()
    assert world.switch.connection_counters(tap).lost_packets > 0
    assert world.receive(sender) == [b"CMSG !/bus/receipt\0t\x000"]
