"""Receipts: the result of one message, sent in its place among the publisher's packets."""

from __future__ import annotations

import pytest

from sbus.protocol.keys import KeySpace
from sbus.protocol.packets import MAX_PACKET_BYTES, join_batch
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import MAX_LISTED_RECIPIENTS, PublishRule, Refusal
from tests.support.switch_harness import REFUSALS, MakeHarness, SwitchHarness, refused
from tests.support.wire import message


def receipt(token: bytes, recipients: int) -> bytes:
    """Return a receipt as the bus sends it."""
    return b"CMSG !/bus/receipt\0%b\0%d" % (token, recipients)


def publish(harness: SwitchHarness, sender: int, *packets: bytes) -> list[bytes]:
    """Send packets as one batch and return the packets that the sender receives."""
    for packet in packets:
        assert harness.send(sender, packet)
    harness.run()
    return harness.receive(sender)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_receipt_counts_the_recipients(harness: SwitchHarness, count: int) -> None:
    for _ in range(count):
        harness.connect(b"a", b"*", b"a")
    sender = harness.connect()
    assert publish(harness, sender, b"CMSG receipt/always\0t", message(b"a", b"1")) == [receipt(b"t", count)]


def test_a_receipt_for_undeliverable_messages_is_omitted_if_there_is_a_recipient(harness: SwitchHarness) -> None:
    hearer, sender = harness.connect(b"a"), harness.connect()
    demand = b"CMSG receipt/undeliverable\0t"
    assert publish(harness, sender, demand, message(b"a", b"1")) == []
    assert harness.receive(hearer) == [message(b"a", b"1")]
    # That message used the demand up.
    assert publish(harness, sender, message(b"b", b"2")) == []
    assert publish(harness, sender, demand, message(b"b", b"3"), message(b"b", b"4")) == [receipt(b"t", 0)]


def listed(token: bytes, *recipients: int) -> bytes:
    """Return a receipt that lists recipients."""
    return receipt(token, len(recipients)) + (b"\0" + b",".join(b"%d" % each for each in recipients) if recipients else b"")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_receipt_lists_the_recipients_of_its_message(harness: SwitchHarness, count: int) -> None:
    recipients = [harness.connect(b"a", b"*", b"a") for _ in range(count)]
    harness.connect(b"b")
    sender = harness.connect()
    sent = [message(b"b", b"0"), b"CMSG receipt/recipients\0t", message(b"a", b"1"), message(b"b", b"2")]
    assert publish(harness, sender, *sent) == [listed(b"t", *recipients)]


def test_a_receipt_lists_the_sender_if_it_gets_its_own_message(harness: SwitchHarness) -> None:
    sender, other = harness.connect(b"a"), harness.connect(b"a")
    sent = [b"CMSG receipt/recipients\0x", message(b"a", b"1"), b"CMSG echo/off", b"CMSG receipt/recipients\0y", message(b"a", b"2")]
    assert publish(harness, sender, *sent) == [sent[1], listed(b"x", sender, other), listed(b"y", other)]


@pytest.mark.parametrize("count", [MAX_LISTED_RECIPIENTS, MAX_LISTED_RECIPIENTS + 1])
def test_a_receipt_lists_all_recipients_or_none(harness: SwitchHarness, count: int) -> None:
    recipients = [harness.connect(b"a") for _ in range(count)]
    answer = publish(harness, harness.connect(), b"CMSG receipt/recipients\0t", message(b"a", b"1"))
    assert answer == [listed(b"t", *recipients) if count == MAX_LISTED_RECIPIENTS else receipt(b"t", count)]


def test_the_receipt_of_a_refused_message_lists_nobody(harness: SwitchHarness) -> None:
    harness.connect(b"b")
    sender = harness.connect()
    harness.switch.set_party(sender, 7, rules=1)
    harness.switch.set_publish_rules((PublishRule(b"a", False),))
    sent = [message(b"b", b"0"), b"CMSG receipt/recipients\0t", message(b"a", b"1")]
    assert publish(harness, sender, *sent) == [b"CMSG !/bus/error\0POLICY\0a", receipt(b"t", 0)]


def test_a_receipt_is_sent_between_earlier_and_later_packets(harness: SwitchHarness) -> None:
    sender = harness.connect(b"")
    sent = [message(b"a", b"1"), b"CMSG receipt/always\0x", message(b"a", b"2"), message(b"a", b"3"), b"CMSG pong\0"]
    assert publish(harness, sender, *sent) == [sent[0], sent[2], receipt(b"x", 1), sent[3], sent[4]]


def test_own_message_counts_only_with_echo(harness: SwitchHarness) -> None:
    sender = harness.connect(b"a")
    assert publish(harness, sender, b"CMSG echo/off", b"CMSG receipt/always\0x", message(b"a", b"1")) == [receipt(b"x", 0)]


def test_a_second_receipt_request_replaces_the_first(harness: SwitchHarness) -> None:
    sender = harness.connect()
    demands = [b"CMSG receipt/always\0x", b"CMSG receipt/undeliverable\0y", b"CMSG receipt/always"]
    assert publish(harness, sender, *demands, message(b"a", b"1")) == [receipt(b"", 0)]


def test_each_message_has_a_receipt_of_its_own(harness: SwitchHarness) -> None:
    hearer, sender = harness.connect(b"a"), harness.connect()
    wanted = []
    for number in range(40):
        key, token = (b"a", b"b")[number % 2], b"%d" % number
        wanted.append(receipt(token, 1 - number % 2))
        harness.send(sender, b"CMSG receipt/always\0" + token)
        harness.send(sender, message(key, token))
    harness.run()
    assert harness.receive(sender) == wanted
    assert len(harness.receive(hearer)) == 20


@pytest.mark.parametrize(
    ("key", "refusal"),
    [
        (b"!/bus/x", Refusal.RESERVED),
        (b"!/event/connect/1", Refusal.RESERVED),
        (b"k" * 4_097, Refusal.KEY_TOO_LONG),
        (b"closed", Refusal.POLICY),
    ],
)
def test_refused_message_has_its_error_and_then_no_recipients(harness: SwitchHarness, key: bytes, refusal: Refusal) -> None:
    sender = harness.connect(b"*")
    harness.switch.set_party(sender, 7, rules=1)
    harness.switch.set_publish_rules((PublishRule(b"closed", False),))
    packet, error = message(key, b""), refused(refusal, key)
    assert publish(harness, sender, b"CMSG receipt/always\0t", packet) == [error, receipt(b"t", 0)]
    assert publish(harness, sender, b"CMSG receipt/undeliverable\0t", packet, message(b"a", b"")) == [
        *[error, receipt(b"t", 0)],
        message(b"a", b""),
    ]


def test_message_that_was_cut_has_its_receipt_and_another_packet_that_was_cut_does_not_use_it_up(harness: SwitchHarness) -> None:
    sender = harness.connect()
    subscription = b"SUB " + b"x" * MAX_PACKET_BYTES
    assert publish(harness, sender, b"CMSG receipt/always\0t", subscription) == [REFUSALS[Refusal.TRUNCATED]]
    assert publish(harness, sender, b"MSG a\0" + b"x" * MAX_PACKET_BYTES) == [refused(Refusal.TRUNCATED, b"a"), receipt(b"t", 0)]


def test_waiting_recipients_count_and_those_that_lose_it_do_not(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=2))
    harness.connect(b"a", send_buffer=20_000)
    sender = harness.connect()
    reported = []
    for number in range(60):
        reported += publish(harness, sender, b"CMSG receipt/always\0%d" % number, message(b"a", bytes(4_000)))
    counts = [int(packet.rsplit(b"\0")[-1]) for packet in reported]
    lost = harness.switch.counters().lost_packets
    assert lost > 0
    assert counts == [1] * (60 - lost) + [0] * lost


def test_a_client_whose_socket_is_too_small_or_closed_is_not_a_recipient(harness: SwitchHarness) -> None:
    small = harness.connect(b"a", send_buffer=5_000)
    sender = harness.connect()
    assert publish(harness, sender, b"CMSG receipt/always\0t", message(b"a", bytes(100_000))) == [receipt(b"t", 0)]
    assert b"CMSG !/bus/lost\x001" in harness.receive(small)
    harness.clients[small].shutdown(2)
    harness.clients[small].close()
    del harness.clients[small]
    assert publish(harness, sender, b"CMSG receipt/always\0t", message(b"a", b"1")) == [receipt(b"t", 0)]


def test_a_receipt_is_queued_with_other_packets_for_the_publisher(harness: SwitchHarness) -> None:
    sender = harness.connect(b"a", send_buffer=20_000)
    sent = []
    for number in range(60):
        sent += [b"CMSG receipt/always\0%d" % number, message(b"a", b"%d " % number + bytes(2_000))]
        for packet in sent[-2:]:
            harness.send(sender, packet)
            harness.run()
    received = harness.drain(sender)
    assert received == [packet for number in range(60) for packet in (sent[2 * number + 1], receipt(b"%d" % number, 1))]


def test_a_receipt_request_belongs_to_one_connection_and_ends_with_it(harness: SwitchHarness) -> None:
    first, second = harness.connect(), harness.connect()
    publish(harness, first, b"CMSG receipt/always\0t")
    assert publish(harness, second, message(b"a", b"1")) == []
    harness.hang_up(first)
    harness.run()
    third = harness.connect()
    assert publish(harness, third, message(b"a", b"1")) == []


@pytest.mark.parametrize("token", [b"", b"x" * 128, bytes(range(1, 128))])
def test_the_token_is_returned_unchanged(harness: SwitchHarness, token: bytes) -> None:
    sender = harness.connect()
    assert publish(harness, sender, b"CMSG receipt/always\0" + token, message(b"a", b"")) == [receipt(token, 0)]


SECRET = b"!/cred//7//x"
WITHHELD = b"CMSG !/bus/receipt\0t\0-"


@pytest.mark.parametrize("demand", [b"always", b"recipients", b"undeliverable"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_user_does_not_learn_whether_a_secret_key_has_recipients(harness: SwitchHarness, demand: bytes, count: int) -> None:
    recipients = [harness.connect(SECRET) for _ in range(count)]
    other_user = harness.connect()
    harness.unprivileged.add(other_user)
    assert publish(harness, other_user, b"CMSG receipt/%b\0t" % demand, message(SECRET, b"1")) == [WITHHELD]
    assert [harness.receive(each) for each in recipients] == [[message(SECRET, b"1")]] * count
    # It was asked about that message alone.
    assert publish(harness, other_user, message(SECRET, b"2"), b"CMSG receipt/always\0t", message(b"a", b"")) == [receipt(b"t", 0)]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_confidant_learns_how_many_got_a_secret(harness: SwitchHarness, count: int) -> None:
    for _ in range(count):
        harness.connect(SECRET)
    sender = harness.connect()
    assert publish(harness, sender, b"CMSG receipt/always\0t", message(SECRET, b"1")) == [receipt(b"t", count)]
    silent: list[bytes] = [] if count else [receipt(b"t", 0)]
    assert publish(harness, sender, b"CMSG receipt/undeliverable\0t", message(SECRET, b"1")) == silent


def test_a_withheld_receipt_keeps_its_place_in_a_batch_too(harness: SwitchHarness) -> None:
    hearer, other_user = harness.connect(SECRET, b"a"), harness.connect(b"a")
    harness.unprivileged.add(other_user)
    sent = [message(b"a", b"1"), b"CMSG receipt/always\0t", message(b"a", b"2"), b"CMSG receipt/undeliverable\0t", message(SECRET, b"3")]
    sent += [message(SECRET, b"4"), b"CMSG pong\0", message(b"a", b"5")]
    expected = [sent[0], sent[2], receipt(b"t", 2), WITHHELD, b"CMSG pong\0", sent[7]]
    for packets in ([*sent], [join_batch(sent)]):
        assert publish(harness, other_user, *packets) == expected
        assert harness.receive(hearer) == [sent[place] for place in (0, 2, 4, 5, 7)]


def test_a_decision_that_takes_longer_than_a_turn_is_kept_for_its_message(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(turn_time=1e-5))
    hearer, other_user = harness.connect(SECRET), harness.connect()
    harness.unprivileged.add(other_user)
    sent = [packet for number in range(40) for packet in (b"CMSG receipt/always\0%d" % number, message(SECRET, b"%d" % number))]
    for packets in (sent, [join_batch(sent)]):
        assert publish(harness, other_user, *packets) == [b"CMSG !/bus/receipt\0%d\0-" % number for number in range(40)]
        assert harness.receive(hearer) == sent[1::2]


def test_a_sender_that_is_ended_in_front_of_its_message_has_not_sent_it(make_harness: MakeHarness) -> None:
    """What was before the message is handed over first, and the error of a packet that was cut does not fit."""
    harness = make_harness(LimitSettings(queue_packets=1))
    hearer, sender = harness.connect(SECRET), harness.connect(b"fill", send_buffer=5_000)
    harness.send(sender, b"CMSG blocking/hard/error")
    filler = harness.connect()
    while not harness.switch.connection_counters(sender).queued_packets:
        publish(harness, filler, message(b"fill", bytes(1_000)))
    for packet in (b"CMSG receipt/always\0t", b"SUB " + b"x" * MAX_PACKET_BYTES, message(SECRET, b"1")):
        harness.send(sender, packet)
    harness.run()
    assert sender not in harness.switch.connections()
    assert harness.receive(hearer) == []


def test_a_rejected_message_to_a_private_key_does_not_reveal_subscribers(harness: SwitchHarness) -> None:
    harness.connect(SECRET)
    other_user = harness.connect()
    harness.unprivileged.add(other_user)
    harness.switch.set_party(other_user, 7, rules=1)
    harness.switch.set_publish_rules((PublishRule(SECRET, False),))
    for key, refusal in ((SECRET, Refusal.POLICY), (b"!/cred//7", Refusal.RESERVED)):
        error = refused(refusal, key)
        assert publish(harness, other_user, b"CMSG receipt/always\0t", message(key)) == [error, receipt(b"t", 0)]


def test_without_secret_keys_nothing_is_withheld(make_harness: MakeHarness) -> None:
    harness = make_harness(keyspace=KeySpace(b"."))
    harness.connect(SECRET)
    sender = harness.connect()
    harness.unprivileged.add(sender)
    assert publish(harness, sender, b"CMSG receipt/always\0t", message(SECRET)) == [receipt(b"t", 1)]


def test_each_receipt_request_is_authorized_again(harness: SwitchHarness) -> None:
    harness.connect(SECRET)
    sender = harness.connect()
    harness.unprivileged.add(sender)
    assert publish(harness, sender, b"CMSG receipt/always\0t", message(SECRET)) == [WITHHELD]
    harness.unprivileged.clear()
    assert publish(harness, sender, b"CMSG receipt/always\0t", message(SECRET)) == [receipt(b"t", 1)]


def test_a_tap_of_another_user_that_loses_a_message_is_not_a_recipient(harness: SwitchHarness) -> None:
    tap, sender = harness.connect(), harness.connect()
    harness.set_party(tap, 1)
    harness.set_party(sender, 2)
    harness.set_user_limits(1, 1, 300_000)
    harness.send(tap, b"CMSG tap/on\0")
    harness.run()
    for _ in range(6):
        harness.send(sender, b"MSG a\0" + bytes(150_000))
        harness.run()
    harness.send(sender, b"CMSG receipt/undeliverable\0t")
    harness.send(sender, b"MSG a\0")
    harness.run()
    assert harness.switch.connection_counters(tap).lost_packets > 0
    assert harness.receive(sender) == [b"CMSG !/bus/receipt\0t\x000"]
