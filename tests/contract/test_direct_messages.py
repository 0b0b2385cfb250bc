"""Direct messages: to one connection alone, by the rules for all messages. Rule 15 of sbusd/dataplane/contract.py."""

from __future__ import annotations

import json
import time

import pytest

from sbus.protocol.direct_messages import direct_packet
from sbus.protocol.packets import MAX_PACKET_BYTES, join_batch, parse_batch
from sbus.protocol.vouching import vouched_packet
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import PublishRule, Refusal, Sight
from tests.support.switch_harness import LONG_TIMEOUTS, REFUSALS, MakeHarness, SwitchHarness, refused, send_all
from tests.support.wire import message

STORE, ALICE, BOB = 991, 1_000, 1_001
ORIGIN = b"!/local/!/cred/1000/1000/19211"
CRED = b"!/cred/9/991/55"
ABSENT = 10**18 - 1
ARMED = b"CMSG receipt/always\0t"
RECEIPT = b"CMSG !/bus/receipt\0t\0"


def store(harness: SwitchHarness, *patterns: bytes, may_vouch: bool = True) -> int:
    """Add a client that may send direct messages."""
    number = harness.connect(*patterns)
    harness.set_party(number, STORE, cred=CRED, may_deliver=True, may_vouch=may_vouch)
    return number


def deliver(harness: SwitchHarness, sender: int, recipient: int, *packets: bytes) -> bytes:
    """Send direct messages, the last one with a receipt, and return the number in that; other packets to the sender are an error."""
    *first, last = [direct_packet(recipient, packet) for packet in packets]
    send_all(harness, sender, *first, ARMED, last)
    (receipt,) = harness.receive(sender)
    assert receipt.startswith(RECEIPT)
    return receipt.removeprefix(RECEIPT)


# The recipient


def test_one_connection_gets_it_and_no_other(harness: SwitchHarness) -> None:
    first, second, other = (harness.connect(*patterns) for patterns in ((b"a/", b"a/b", b""), (b"a/",), (b"x",)))
    sender = store(harness, b"")
    harness.configure(second, sender=True)
    own = message(b"a/b", b"for all")
    packets = [message(b"a/b", b"%d" % number) for number in range(3)]
    send_all(
        harness, sender, own, direct_packet(second, packets[0]), own, direct_packet(first, packets[1]), direct_packet(second, packets[2])
    )
    head = b"CMSG !/from/%d/%b\0" % (sender, CRED)
    assert harness.receive(first) == [own, own, packets[1]], "once, although three patterns match"
    assert harness.receive(second) == [head + each for each in (own, packets[0], own, packets[2])]
    assert harness.receive(other) == []
    assert harness.receive(sender) == [own, own]
    counters = harness.switch.counters()
    assert (counters.messages, counters.undeliverable, counters.refused_packets) == (5, 0, 0)
    assert harness.events == []


def test_a_client_may_send_one_to_itself(harness: SwitchHarness) -> None:
    sender = store(harness, b"a")
    send_all(harness, sender, direct_packet(sender, message(b"a", b"1")))
    assert harness.receive(sender) == [message(b"a", b"1")]
    send_all(harness, sender, b"CMSG echo/off", ARMED, direct_packet(sender, message(b"a", b"2")))
    assert harness.receive(sender) == [RECEIPT + b"0"]


def test_without_a_matching_pattern_there_is_no_recipient_and_no_error(harness: SwitchHarness) -> None:
    subscriber, other, gone, sender = harness.connect(b"a/"), harness.connect(b"b"), harness.connect(b"b"), store(harness)
    harness.hang_up(gone)
    harness.run()
    harness.events.clear()
    for recipient in (subscriber, gone, ABSENT, 2**32 + other):
        assert deliver(harness, sender, recipient, message(b"b")) == b"0"
    assert harness.receive(subscriber) == harness.receive(other) == []
    assert harness.switch.counters().undeliverable == 4
    send_all(harness, sender, direct_packet(ABSENT, message(b"b")))
    assert harness.receive(sender) == []
    assert harness.events == []
    assert harness.switch.counters().undeliverable == 5


def test_a_receipt_lists_the_one_recipient(harness: SwitchHarness) -> None:
    subscriber, _, sender = harness.connect(b"b"), harness.connect(b"b"), store(harness)
    send_all(harness, sender, b"CMSG receipt/recipients\0t", direct_packet(subscriber, message(b"b")))
    assert harness.receive(sender) == [RECEIPT + b"1\0%d" % subscriber]
    send_all(harness, sender, b"CMSG receipt/undeliverable\0t", direct_packet(subscriber, message(b"b")))
    assert harness.receive(sender) == []
    # Nothing remains for the next message: it has both recipients.
    send_all(harness, sender, b"CMSG receipt/recipients\0t", message(b"b"))
    assert harness.receive(sender)[0].startswith(RECEIPT + b"2\0")


def test_a_member_of_groups_gets_it_once_as_a_member_of_the_first(harness: SwitchHarness) -> None:
    member, fellow, both, sender = (harness.connect(), harness.connect(), harness.connect(b"jobs/"), store(harness))
    for number in (member, fellow, both):
        harness.set_party(number, ALICE)
    for group in (b"z", b"b", b"c", b"a"):
        pattern = b"other/" if group == b"a" else b"jobs/"
        for number in (member, fellow, both):
            send_all(harness, number, b"CMSG group/join\0%b\0%b" % (group, pattern))
    harness.configure(fellow, sender=True)
    job = message(b"jobs/1", b"x")
    assert deliver(harness, sender, member, job) == b"1"
    assert harness.receive(member) == [b"CMSG !/group/b\0" + job]
    assert deliver(harness, sender, fellow, vouched_packet(ORIGIN, job)) == b"1"
    assert harness.receive(fellow) == [b"CMSG !/group/b\0CMSG !/from/%d/%b/%b\0" % (sender, CRED, ORIGIN) + job]
    assert deliver(harness, sender, both, job) == b"1"
    assert harness.receive(both) == [job], "its own pattern comes first"
    assert deliver(harness, sender, member, message(b"else")) == b"0"


def test_a_member_that_got_one_is_not_the_next(harness: SwitchHarness) -> None:
    members, sender = [harness.connect() for _ in range(2)], store(harness)
    for number in members:
        harness.set_party(number, ALICE)
        send_all(harness, number, b"CMSG group/join\0g\0j")
    send_all(harness, sender, direct_packet(members[0], message(b"j", b"1")))
    assert len(harness.receive(members[0])) == 1
    send_all(harness, sender, message(b"j", b"2"))
    assert [len(harness.receive(number)) for number in members] == [0, 1]


def test_what_a_member_leaves_in_its_queue_goes_on_as_in_any_group(harness: SwitchHarness) -> None:
    member, fellow, sender = harness.connect(send_buffer=5_000), harness.connect(), store(harness)
    for number in (member, fellow):
        harness.set_party(number, ALICE)
        send_all(harness, number, b"CMSG group/join\0g\0j")
    packets = [message(b"j", b"%d" % number + bytes(1_000)) for number in range(20)]
    send_all(harness, sender, *(direct_packet(member, packet) for packet in packets))
    left = harness.switch.connection_counters(member).queued_packets
    assert left > 5
    assert harness.receive(fellow) == []
    harness.hang_up(member)
    harness.run()
    assert harness.receive(fellow) == [b"CMSG !/group/g\0" + packet for packet in packets[-left:]]


# The same rules as for every message


def test_they_can_be_in_a_batch_with_others_origins_and_all(harness: SwitchHarness) -> None:
    plain, wanting, sender = harness.connect(b""), harness.connect(b""), store(harness)
    for number in (plain, wanting):
        harness.configure(number, batch=True, sender=number == wanting)
    packets = [message(b"a", b"%d" % number) for number in range(20)]
    batch = [
        each
        for packet in packets
        for each in (direct_packet(plain, packet), direct_packet(wanting, vouched_packet(ORIGIN, packet)), vouched_packet(ORIGIN, packet))
    ]
    send_all(harness, sender, join_batch([*batch, direct_packet(plain, packets[0])]))
    got = [packet for each in harness.receive(plain) for packet in parse_batch(each)]
    assert got == [packet for packet in packets for _ in range(2)] + packets[:1]
    shown = [packet for each in harness.receive(wanting) for packet in parse_batch(each)]
    assert shown == [b"CMSG !/from/%d/%b/%b\0" % (sender, CRED, ORIGIN) + packet for packet in packets for _ in range(2)]


def test_rules_about_the_client_apply_and_reserved_keys_stay_closed(harness: SwitchHarness) -> None:
    listener, sender = harness.connect(b"", b"!/cred//1//x", b"!/event/", b"!/conn/1/"), store(harness)
    harness.set_publish_rules((PublishRule(b"jobs/", True), PublishRule(b"!/c", True), PublishRule(b"", False)))
    harness.set_party(sender, STORE, cred=CRED, may_deliver=True, rules=7)
    allowed = [b"jobs/x", b"!/cred//1//x", b"!/conn/1/jobs/x"]
    denied = [
        (Refusal.POLICY, b"lab/x"),
        (Refusal.RESERVED, b"!/cred/1"),
        (Refusal.POLICY, b"!/conn/1/lab/x"),
        (Refusal.RESERVED, b"!/event/connect/1"),
        (Refusal.RESERVED, b"!/bus/lost"),
        (Refusal.KEY_TOO_LONG, b"k" * 5_000),
    ]
    for key in allowed:
        assert deliver(harness, sender, listener, message(key)) == b"1"
    assert harness.receive(listener) == [message(key) for key in allowed]
    send_all(harness, sender, *(direct_packet(listener, message(key)) for _, key in denied))
    assert harness.receive(sender) == [refused(refusal, key) for refusal, key in denied]
    send_all(harness, sender, ARMED, direct_packet(listener, message(b"lab/x")))
    assert harness.receive(sender) == [refused(Refusal.POLICY, b"lab/x"), RECEIPT + b"0"]
    assert harness.receive(listener) == []
    assert harness.refusals(sender) == {
        Refusal.POLICY: (b"lab/x", 3),
        Refusal.RESERVED: (b"!/cred/1", 3),
        Refusal.KEY_TOO_LONG: (b"k" * 5_000, 1),
    }


def test_a_truncated_one_is_refused_as_a_message(harness: SwitchHarness) -> None:
    subscriber, sender = harness.connect(b"a"), store(harness)
    send_all(harness, sender, ARMED, b"CMSG !/to/%d\0" % subscriber + message(b"a", bytes(MAX_PACKET_BYTES)))
    assert harness.receive(sender) == [REFUSALS[Refusal.TRUNCATED], RECEIPT + b"0"]
    assert harness.receive(subscriber) == []


def test_a_wildcard_does_not_open_private_keys_to_it(harness: SwitchHarness) -> None:
    wild, private, sender = harness.connect(b"", b"*/cred/", b"!*/"), harness.connect(b"!/cred//1000//x"), store(harness)
    for recipient, expected in ((wild, []), (private, [message(b"!/cred//1000//x")])):
        send_all(harness, sender, direct_packet(recipient, message(b"!/cred//1000//x")))
        assert harness.receive(recipient) == expected


def test_whether_a_connection_has_a_private_pattern_is_not_disclosed(harness: SwitchHarness) -> None:
    private, other, sender = harness.connect(b"!/cred//1000//x"), harness.connect(), store(harness)
    harness.unprivileged = {sender}
    for recipient in (private, other, ABSENT):
        for ask in (b"always", b"undeliverable", b"recipients"):
            send_all(harness, sender, b"CMSG receipt/%b\0t" % ask, direct_packet(recipient, message(b"!/cred//1000//x")))
            assert harness.receive(sender) == [RECEIPT + b"-"]
    assert len(harness.receive(private)) == 3


@pytest.mark.parametrize("key", [b"a", b"!/cred//1000//x"])
def test_a_full_queue_of_another_user_is_its_secret(make_harness: MakeHarness, key: bytes) -> None:
    harness = make_harness(LimitSettings(queue_packets=2))
    slow, sender = harness.connect(key, send_buffer=5_000), store(harness)
    harness.set_party(slow, ALICE)
    packet = direct_packet(slow, message(key, bytes(1_000)))
    while not harness.switch.connection_counters(slow).lost_packets:
        send_all(harness, sender, packet)
    assert deliver(harness, sender, slow, message(key, bytes(1_000))) == b"1"
    harness.set_party(sender, STORE, cred=CRED, may_deliver=True, sight=Sight.ALL)
    assert deliver(harness, sender, slow, message(key, bytes(1_000))) == b"0"
    harness.check_balance()


def test_a_slow_recipient_loses_what_its_queue_does_not_take_and_is_notified(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=4))
    slow, reader, sender = harness.connect(b"a", send_buffer=5_000), harness.connect(b"a"), store(harness)
    packets = [message(b"a", b"%d" % number + bytes(1_000)) for number in range(60)]
    for packet in packets:
        send_all(harness, sender, direct_packet(slow, packet), direct_packet(reader, packet))
    assert harness.receive(reader) == packets, "the publisher does not wait"
    received = harness.drain(slow)
    notices = [each for each in received if each.startswith(b"CMSG !/bus/lost\0")]
    kept = [each for each in received if each not in notices]
    assert kept == packets[: len(kept)]
    assert [int(each.partition(b"\0")[2]) for each in notices] == [len(packets) - len(kept)]
    harness.check_balance()


@pytest.mark.parametrize("may_wait", [True, False])
def test_a_recipient_that_blocks_blocks_its_own_user_only(make_harness: MakeHarness, may_wait: bool) -> None:
    harness = make_harness(LimitSettings(queue_packets=4, block_timeout=600.0, progress_timeout=600.0))
    slow, sender = harness.connect(b"a", send_buffer=5_000), store(harness)
    harness.set_party(slow, STORE if may_wait else ALICE)
    send_all(harness, slow, b"CMSG blocking/hard/block")
    packet = direct_packet(slow, message(b"a", bytes(1_000)))
    for _ in range(30):
        send_all(harness, sender, packet)
    counters = harness.switch.connection_counters(slow)
    assert (harness.switch.counters().blocks > 0) is may_wait
    assert (counters.lost_packets > 0) is not may_wait


def test_a_paced_publisher_waits_for_it(make_harness: MakeHarness) -> None:
    harness = make_harness(LONG_TIMEOUTS)
    slow, fast, sender = harness.connect(b"a", send_buffer=20_000), harness.connect(b"a"), store(harness)
    harness.set_party(slow, STORE)
    harness.switch.set_user_limits(STORE, 1 << 30, 200_000)
    harness.configure(sender, pace=True)
    waiting = [message(b"a", b"%d " % number + bytes(2_000)) for number in range(150)]
    packets, received = list(waiting), list[bytes]()
    while waiting or len(received) < len(packets):
        while waiting and harness.send(sender, direct_packet(slow, waiting[0])):
            waiting.pop(0)
        harness.run()
        received += harness.receive(slow)
    assert received == packets
    assert harness.receive(fast) == []
    assert harness.switch.counters().blocks > 0


def test_a_tap_gets_the_recipient(harness: SwitchHarness) -> None:
    tap, subscriber, sender = harness.connect(), harness.connect(b"a"), store(harness, b"a")
    harness.switch.set_tap(tap, b"")
    send_all(harness, sender, b"CMSG echo/off")
    packets = [
        direct_packet(subscriber, message(b"a", b"1")),
        direct_packet(subscriber, vouched_packet(ORIGIN, message(b"a", b"2"))),
        direct_packet(ABSENT, message(b"a", b"3")),
        direct_packet(sender, message(b"a", b"4")),
        message(b"a", b"5"),
    ]
    send_all(harness, sender, *packets)
    lines = [json.loads(packet.partition(b"\0")[2].partition(b"\n")[0]) for packet in harness.receive(tap)]
    assert [(line.get("to"), line.get("vouched"), line["recipients"], line.get("missed")) for line in lines] == [
        (subscriber, None, 1, None),
        (subscriber, ORIGIN.decode(), 1, None),
        (ABSENT, None, 0, None),
        (sender, None, 0, [sender]),
        (None, None, 1, [sender]),
    ]


def test_stream_sockets_take_and_send_them_too(harness: SwitchHarness) -> None:
    sender, subscriber, other = (harness.connect(*patterns, is_stream=True) for patterns in ((), (b"a",), (b"a",)))
    harness.set_party(sender, STORE, cred=CRED, may_deliver=True)
    send_all(harness, sender, ARMED, direct_packet(subscriber, message(b"a", b"1")))
    assert harness.receive(sender) == [RECEIPT + b"1"]
    assert harness.receive(subscriber) == [message(b"a", b"1")]
    assert harness.receive(other) == []


# Turns, decisions and handovers


def test_a_handover_within_a_batch_keeps_the_recipients_of_what_is_not_handled(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(batch_packets=2))
    first, second, sender = harness.connect(b"a"), harness.connect(b"a"), store(harness)
    harness.configure(second, sender=True)
    packets = [message(b"a", b"%d" % number) for number in range(9)]
    shown = [b"CMSG !/from/%d/%b/%b\0" % (sender, CRED, ORIGIN) + packet for packet in packets]
    harness.send(sender, join_batch([direct_packet(second, vouched_packet(ORIGIN, packet)) for packet in packets]))
    harness.switch.turn(0)
    assert harness.receive(second) == shown[:2]
    harness.hand_over()
    harness.run()
    assert harness.receive(second) == shown[2:]
    assert harness.receive(first) == []


def test_queued_ones_reach_their_recipient_after_a_handover(harness: SwitchHarness) -> None:
    slow, other, sender = harness.connect(b"a", send_buffer=20_000), harness.connect(b"a"), store(harness)
    packets = [message(b"a", b"%d " % number + bytes(2_000)) for number in range(40)]
    for packet in packets:
        send_all(harness, sender, direct_packet(slow, packet))
    assert harness.switch.connection_counters(slow).queued_packets > 20
    harness.hand_over()
    assert harness.drain(slow) == packets
    assert harness.receive(other) == []


class Deciding(SwitchHarness):
    """A switch whose sink records its decisions, each of which takes longer than the ``turn_time`` of these tests."""

    def may_know_recipients(self, connection: int, key: bytes) -> bool:
        self.events.append(("decided", connection, key))
        time.sleep(0.001)
        return super().may_know_recipients(connection, key)


KEY = b"!/cred//1000//x"


@pytest.mark.parametrize("origin", [None, ORIGIN])
def test_one_that_must_wait_for_a_decision_keeps_its_recipient(make_harness: MakeHarness, origin: bytes | None) -> None:
    """The decision about its receipt takes longer than a turn, so it is put back."""
    harness = make_harness(LimitSettings(turn_time=0.00001), of=Deciding)
    wanting, other, sender = harness.connect(KEY), harness.connect(KEY), store(harness)
    packets = [message(KEY, b"%d" % number) for number in range(20)]
    wrapped = [packet if origin is None else vouched_packet(origin, packet) for packet in packets]
    send_all(harness, sender, join_batch([each for packet in wrapped for each in (ARMED, direct_packet(wanting, packet))]))
    assert harness.receive(wanting) == packets
    assert harness.receive(other) == []
    assert harness.receive(sender) == [RECEIPT + b"1"] * 20
    assert harness.events == [("decided", sender, KEY)] * 20


def test_one_that_waits_for_a_decision_is_refused_if_the_right_ends(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(turn_time=0.00001), of=Deciding)
    wanting, sender = harness.connect(KEY), store(harness)
    packet = direct_packet(wanting, message(KEY))
    for each in (ARMED, packet):
        harness.send(sender, each)
    while not harness.events:
        harness.switch.turn(0)
    harness.set_party(sender, STORE, cred=CRED)
    harness.run()
    assert harness.receive(sender) == [packet], "the sink of the harness got it, as a control message"
    assert harness.receive(wanting) == []
