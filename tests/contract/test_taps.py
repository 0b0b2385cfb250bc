"""Taps: every message and its result, without slowing down any client."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import MISSED, PublishRule, Sight
from tests.support.switch_harness import MakeHarness, SwitchHarness
from tests.support.wire import message

HEAD = b"CMSG !/tap\0"


def tapper(harness: SwitchHarness, pattern: bytes = b"", send_buffer: int | None = None) -> int:
    """Add a client with a tap."""
    number = harness.connect(send_buffer=send_buffer)
    tap(harness, number, pattern)
    return number


def tap(harness: SwitchHarness, client: int, pattern: bytes | None) -> None:
    """Give a client a tap, or take it away."""
    harness.send(client, b"CMSG tap/off" if pattern is None else b"CMSG tap/on\0" + pattern)
    harness.run()


def tap_records(packets: list[bytes]) -> list[tuple[dict[str, Any], bytes]]:
    """Return the lines of a tap without what does not change, each with its packet."""
    lines = []
    for packet in packets:
        assert packet.startswith(HEAD), packet
        line, newline, rest = packet.removeprefix(HEAD).partition(b"\n")
        facts = json.loads(line)
        assert (facts.pop("kind"), newline) == ("message", b"\n")
        assert abs(facts.pop("time") - time.time_ns()) < 600e9
        lines.append((facts, rest))
    return lines


def line(sender: int, recipients: int, queued: int = 0, discarded: int = 0, missed: list[int] | None = None) -> dict[str, object]:
    """Return what a line says of a message of a client without credentials."""
    counts = {"id": sender, "cred": "", "recipients": recipients, "queued": queued, "discarded": discarded}
    return counts if missed is None else {**counts, "missed": missed}


def test_a_tap_reports_sender_and_recipients_of_each_message(harness: SwitchHarness) -> None:
    listener, sender = tapper(harness), harness.connect()
    harness.switch.set_party(sender, 1_000, cred=b"!/cred/7/1000/55")
    harness.connect(b"a", b"*")
    harness.connect(b"a")
    sent = [message(b"a", b"1\n2"), message(b"b", b""), message(b"unused/x", b"\0\xff")]
    for packet in sent:
        harness.send(sender, packet)
    harness.run()
    who = {"id": sender, "cred": "!/cred/7/1000/55", "queued": 0, "discarded": 0}
    wanted = [(who | {"recipients": count}, packet) for count, packet in zip((2, 1, 0), sent, strict=True)]
    assert tap_records(harness.receive(listener)) == wanted


@pytest.mark.parametrize("key", [b"!/cred/1/2/3/x", b"!/conn/7/x", b"a", b""])
def test_pattern_of_a_tap_reaches_reserved_keys_too(harness: SwitchHarness, key: bytes) -> None:
    listeners = [tapper(harness, pattern) for pattern in (b"", b"!/", b"*/", b"other")]
    sender = harness.connect()
    harness.send(sender, message(key, b"x"))
    harness.run()
    delivered = [len(harness.receive(listener)) for listener in listeners]
    assert delivered == [1, key.startswith(b"!/"), b"/" in key, 0]


def test_rejected_messages_are_not_reported_as_messages(harness: SwitchHarness) -> None:
    listener, sender = tapper(harness), harness.connect()
    harness.switch.set_party(sender, 1_000, rules=1)
    harness.switch.set_publish_rules((PublishRule(b"closed", False),))
    for packet in (message(b"closed"), message(b"!/bus/x"), message(b"k" * 5_000)):
        harness.send(sender, packet)
    harness.run()
    assert harness.receive(listener) == []


def test_a_tap_is_not_a_recipient(harness: SwitchHarness) -> None:
    listener, sender = tapper(harness), harness.connect()
    for packet in (b"CMSG receipt/always\0t", message(b"a")):
        harness.send(sender, packet)
    harness.run()
    assert harness.receive(sender) == [b"CMSG !/bus/receipt\0t\x000"]
    assert tap_records(harness.receive(listener)) == [(line(sender, 0), message(b"a"))]
    assert harness.switch.counters().undeliverable == 1
    assert harness.switch.recipients(b"a") == []


def test_a_tap_that_subscribes_receives_the_message_before_its_record(harness: SwitchHarness) -> None:
    both = harness.connect(b"a")
    tap(harness, both, b"")
    harness.send(both, message(b"a", b"1"))
    harness.run()
    first, second = harness.receive(both)
    assert first == message(b"a", b"1")
    assert tap_records([second]) == [(line(both, 1), first)]


def test_a_connection_has_one_tap_which_can_be_disabled(harness: SwitchHarness) -> None:
    listener, sender = tapper(harness, b"a"), harness.connect()
    tap(harness, listener, b"b")
    for expected in (1, 0):
        for key in (b"a", b"b"):
            harness.send(sender, message(key))
        harness.run()
        assert [rest for _, rest in tap_records(harness.receive(listener))] == [message(b"b")] * expected
        assert harness.switch.is_tapped() is bool(expected)
        tap(harness, listener, None)


def test_tap_ends_with_its_connection(harness: SwitchHarness) -> None:
    listener, sender = tapper(harness), harness.connect()
    assert harness.switch.is_tapped()
    harness.hang_up(listener)
    harness.run()
    assert not harness.switch.is_tapped()
    harness.send(sender, message(b"a"))
    harness.run()
    successor = harness.connect()
    harness.send(sender, message(b"a"))
    harness.run()
    assert harness.receive(successor) == []


def test_a_tap_record_keeps_the_result_at_the_time_of_the_message(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=5))
    slow, quick, sender = harness.connect(b"a", send_buffer=5_000), harness.connect(b"a"), harness.connect()
    listener = tapper(harness)
    lines = []
    for _ in range(40):
        harness.send(sender, message(b"a", bytes(1_000)))
        harness.run()
        harness.receive(quick)
        lines += [facts for facts, _ in tap_records(harness.receive(listener))]
    lost = harness.switch.connection_counters(slow).lost_packets
    assert lost > 0
    wanted = [line(sender, 2)] * (35 - lost) + [line(sender, 2, queued=1)] * 5 + [line(sender, 1, discarded=1, missed=[slow])] * lost
    assert lines == wanted


def test_sender_without_echo_is_named_as_one_that_missed_its_message(harness: SwitchHarness) -> None:
    sender, other, listener = harness.connect(b"a"), harness.connect(b"a", b"b"), tapper(harness)
    lines = []
    for packet in (b"CMSG echo/off", message(b"a"), message(b"b"), b"CMSG echo/on", message(b"a")):
        harness.send(sender, packet)
        harness.run()
        lines += [facts for facts, _ in tap_records(harness.receive(listener))]
    assert lines == [line(sender, 1, missed=[sender]), line(sender, 1), line(sender, 2)]
    assert len(harness.receive(other)) == 3


def test_a_receipt_does_not_hide_clients_that_missed_the_message(harness: SwitchHarness) -> None:
    sender, listener = harness.connect(b"a"), tapper(harness)
    for packet in (b"CMSG echo/off", b"CMSG receipt/always\0t", message(b"a")):
        harness.send(sender, packet)
    harness.run()
    assert [facts for facts, _ in tap_records(harness.receive(listener))] == [line(sender, 0, missed=[sender])]


def test_a_client_that_ends_in_a_batch_misses_its_undelivered_messages(make_harness: MakeHarness) -> None:
    """It is full after some messages of the batch, and wants to be ended then: the others reach a connection that is ending."""
    harness = make_harness(LimitSettings(queue_packets=2))
    fragile, quick = harness.connect(b"a", send_buffer=5_000), harness.connect(b"a")
    harness.send(fragile, b"CMSG blocking/hard/error")
    harness.run()
    sender, listener = harness.connect(), tapper(harness)
    for _ in range(40):
        harness.send(sender, message(b"a", bytes(1_000)))
        harness.send(sender, b"CMSG receipt/always\0t")
    harness.run()
    assert fragile not in harness.switch.connections()
    lines = [facts for facts, _ in tap_records(harness.receive(listener))]
    assert len(lines) == len(harness.receive(quick)) == 40
    counts = [(facts["recipients"], facts.get("missed")) for facts in lines]
    assert counts == sorted(counts, key=[(2, None), (1, [fragile]), (1, None)].index)
    assert (1, [fragile]) in counts


@pytest.mark.parametrize(("count", "named"), [(MISSED, True), (MISSED + 1, False)])
def test_more_than_can_be_named_are_not_named_at_all(make_harness: MakeHarness, count: int, named: bool) -> None:
    harness = make_harness(LimitSettings())
    slow = [harness.connect(b"a", send_buffer=5_000) for _ in range(count)]
    for client in slow:
        harness.send(client, b"CMSG blocking/soft/discard")
    harness.run()
    sender, listener = harness.connect(), tapper(harness)
    for _ in range(12):
        harness.send(sender, message(b"a", bytes(1_000)))
        harness.run()
    last = [facts for facts, _ in tap_records(harness.receive(listener))][-1]
    assert last == line(sender, 0, discarded=count, missed=slow if named else [])


@pytest.mark.parametrize("mode", [b"blocking/soft/block", b"blocking/hard/block"])
def test_a_tap_that_does_not_read_blocks_no_client_and_learns_its_losses(make_harness: MakeHarness, mode: bytes) -> None:
    harness = make_harness(LimitSettings(queue_packets=10))
    lazy, quick, sender = tapper(harness, send_buffer=5_000), harness.connect(b"a"), harness.connect()
    for client in (lazy, quick, sender):
        harness.switch.set_party(client, 1_000, blocks_others=True)
    harness.send(lazy, b"CMSG " + mode)
    for _ in range(200):
        assert harness.send(sender, message(b"a", bytes(1_000)))
        harness.run()
        assert len(harness.receive(quick)) == 1
    packets = harness.drain(lazy)
    lost = sum(int(packet.partition(b"\0")[2]) for packet in packets if packet.startswith(b"CMSG !/bus/lost"))
    assert lost > 100
    assert lost + sum(packet.startswith(HEAD) for packet in packets) == 200


def test_flood_of_one_user_does_not_hide_another_from_a_tap(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(queue_packets=40))
    lazy, flooder, quiet = tapper(harness, send_buffer=5_000), harness.connect(), harness.connect()
    for number, client in enumerate((lazy, flooder, quiet)):
        harness.switch.set_party(client, 1_000 + number)
    for _ in range(200):
        harness.send(flooder, message(b"flood", bytes(500)))
        harness.run()
    harness.send(quiet, message(b"secret", b"deed"))
    harness.run()
    assert any(packet.endswith(message(b"secret", b"deed")) for packet in harness.drain(lazy))


def test_tap_that_would_rather_be_ended_is_in_the_middle_of_a_batch(make_harness: MakeHarness) -> None:
    """It is disconnected as a recipient of the batch that its tap should report."""
    harness = make_harness(LimitSettings(queue_packets=5))
    both = harness.connect(b"a", send_buffer=5_000)
    for command in (b"CMSG blocking/hard/error", b"CMSG tap/on\0"):
        harness.send(both, command)
    harness.run()
    sender, witness = harness.connect(), tapper(harness)
    for _ in range(60):
        harness.send(sender, message(b"a", bytes(1_000)))
    harness.run()
    assert both not in harness.switch.connections()
    assert len(tap_records(harness.receive(witness))) == 60


def test_a_record_goes_to_taps_whose_pattern_matches_the_key(harness: SwitchHarness) -> None:
    everything, lost, other = tapper(harness), tapper(harness, b"!/bus/lost"), tapper(harness, b"a")
    harness.switch.report(b"!/bus/lost", HEAD + b"{}\n", uid=0)
    assert [harness.receive(each) for each in (everything, lost, other)] == [[HEAD + b"{}\n"], [HEAD + b"{}\n"], []]


def test_many_taps_share_queued_records(harness: SwitchHarness) -> None:
    taps = [tapper(harness, send_buffer=5_000) for _ in range(10)]
    sender = harness.connect()
    sent = [message(b"a", b"%d " % number + bytes(1_000)) for number in range(60)]
    for packet in sent:
        harness.send(sender, packet)
    harness.run()
    for each in taps:
        assert [rest for _, rest in tap_records(harness.drain(each))] == sent


@pytest.mark.parametrize("way", ["report", "announce"])
def test_records_caused_by_a_user_have_the_queue_limit_of_its_messages(make_harness: MakeHarness, way: str) -> None:
    """A flood of denials or events of one user must not push those of another out of the record."""
    harness = make_harness(LimitSettings(queue_packets=64, queue_bytes=64 << 10))
    listener = tapper(harness, send_buffer=5_000)
    harness.send(listener, b"SUB !/event/")
    harness.run()
    harness.switch.set_party(listener, 0, sight=Sight.ALL)
    hostile, victim = 65_533, 65_532

    def cause(uid: int) -> None:
        if way == "report":
            harness.switch.report(b"a", HEAD + b'{"uid":%d}\n' % uid + bytes(300), uid=uid)
        else:
            harness.switch.announce(b"MSG !/event/subscribe/1/%d\0" % uid + bytes(300), sight=Sight.OWN, uid=uid, payer=uid)

    for _ in range(500):
        cause(hostile)
    for _ in range(10):
        cause(victim)
    received: list[bytes] = []
    while more := harness.receive(listener):
        received += more
        harness.run()
    assert sum(b"%d" % victim in packet for packet in received) == 10
    lost = sum(int(packet.partition(b"\0")[2]) for packet in received if packet.startswith(b"CMSG !/bus/lost"))
    assert lost + sum(b"%d" % hostile in packet for packet in received) == 500


def test_members_that_were_not_chosen_are_named_as_missed(harness: SwitchHarness) -> None:
    """So the recipients of a message follow from the subscriptions, as the record needs it."""
    listener, subscriber, sender = tapper(harness), harness.connect(b"jobs/"), harness.connect()
    members = [harness.connect() for _ in range(4)]
    for each in members:
        harness.switch.subscribe(each, b"jobs/\0workers")
    harness.switch.subscribe(subscriber, b"jobs/\0workers")
    harness.switch.subscribe(members[0], b"jobs/*\0others")
    chosen = []
    for number in range(5):
        harness.send(sender, b"MSG jobs/a\0%d" % number)
        harness.run()
        got = [each for each in members if harness.receive(each)]
        harness.receive(subscriber)
        ((facts, _),) = tap_records(harness.receive(listener))
        chosen.append(got)
        assert facts == line(sender, 3, missed=[each for each in members if each not in got])
    assert len({tuple(each) for each in chosen}) > 2, "different members get them, one of them also as the only member of the other group"
