"""Taps: every message and what became of it, and nobody slowed by it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from sbusd.config.settings import LimitSettings
from sbusd.dataplane.contract import MISSED, PublishRule, Sight
from tests.support.wire import message
from tests.support.world import MakeWorld, World

HEAD = b"CMSG !/tap\0"


def tapper(world: World, pattern: bytes = b"", send_buffer: int | None = None) -> int:
    """Add a client with a tap."""
    number = world.connect(send_buffer=send_buffer)
    tap(world, number, pattern)
    return number


def tap(world: World, client: int, pattern: bytes | None) -> None:
    """Give a client a tap, or take it away."""
    world.send(client, b"CMSG tap/off" if pattern is None else b"CMSG tap/on\0" + pattern)
    world.run()


def told(packets: list[bytes]) -> list[tuple[dict[str, Any], bytes]]:
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


def test_each_message_is_told_with_who_sent_it_and_who_got_it(world: World) -> None:
    listener, sender = tapper(world), world.connect()
    world.switch.set_party(sender, 1_000, cred=b"!/cred/7/1000/55")
    world.connect(b"a", b"*")
    world.connect(b"a")
    sent = [message(b"a", b"1\n2"), message(b"b", b""), message(b"nobody/x", b"\0\xff")]
    for packet in sent:
        world.send(sender, packet)
    world.run()
    who = {"id": sender, "cred": "!/cred/7/1000/55", "queued": 0, "discarded": 0}
    wanted = [(who | {"recipients": count}, packet) for count, packet in zip((2, 1, 0), sent, strict=True)]
    assert told(world.receive(listener)) == wanted


@pytest.mark.parametrize("key", [b"!/cred/1/2/3/x", b"!/conn/7/x", b"a", b""])
def test_pattern_of_a_tap_reaches_reserved_keys_too(world: World, key: bytes) -> None:
    listeners = [tapper(world, pattern) for pattern in (b"", b"!/", b"*/", b"other")]
    sender = world.connect()
    world.send(sender, message(key, b"x"))
    world.run()
    heard = [len(world.receive(listener)) for listener in listeners]
    assert heard == [1, key.startswith(b"!/"), b"/" in key, 0]


def test_refused_messages_are_not_told_as_messages(world: World) -> None:
    listener, sender = tapper(world), world.connect()
    world.switch.set_party(sender, 1_000, rules=1)
    world.switch.set_publish_rules((PublishRule(b"closed", False),))
    for packet in (message(b"closed"), message(b"!/bus/x"), message(b"k" * 5_000)):
        world.send(sender, packet)
    world.run()
    assert world.receive(listener) == []


def test_tap_is_no_recipient(world: World) -> None:
    listener, sender = tapper(world), world.connect()
    for packet in (b"CMSG receipt/always\0t", message(b"a")):
        world.send(sender, packet)
    world.run()
    assert world.receive(sender) == [b"CMSG !/bus/receipt\0t\x000"]
    assert told(world.receive(listener)) == [(line(sender, 0), message(b"a"))]
    assert world.switch.counters().undeliverable == 1
    assert world.switch.recipients(b"a") == []


def test_tap_that_subscribes_is_told_after_it_got_the_message(world: World) -> None:
    both = world.connect(b"a")
    tap(world, both, b"")
    world.send(both, message(b"a", b"1"))
    world.run()
    first, second = world.receive(both)
    assert first == message(b"a", b"1")
    assert told([second]) == [(line(both, 1), first)]


def test_one_tap_at_a_time_and_none_after_it_is_off(world: World) -> None:
    listener, sender = tapper(world, b"a"), world.connect()
    tap(world, listener, b"b")
    for expected in (1, 0):
        for key in (b"a", b"b"):
            world.send(sender, message(key))
        world.run()
        assert [rest for _, rest in told(world.receive(listener))] == [message(b"b")] * expected
        assert world.switch.is_tapped() is bool(expected)
        tap(world, listener, None)


def test_tap_ends_with_its_connection(world: World) -> None:
    listener, sender = tapper(world), world.connect()
    assert world.switch.is_tapped()
    world.hang_up(listener)
    world.run()
    assert not world.switch.is_tapped()
    world.send(sender, message(b"a"))
    world.run()
    successor = world.connect()
    world.send(sender, message(b"a"))
    world.run()
    assert world.receive(successor) == []


def test_what_became_of_a_message_is_told_as_it_was(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(queue_packets=5))
    slow, quick, sender = world.connect(b"a", send_buffer=5_000), world.connect(b"a"), world.connect()
    listener = tapper(world)
    lines = []
    for _ in range(40):
        world.send(sender, message(b"a", bytes(1_000)))
        world.run()
        world.receive(quick)
        lines += [facts for facts, _ in told(world.receive(listener))]
    lost = world.switch.connection_counters(slow).lost_packets
    assert lost > 0
    wanted = [line(sender, 2)] * (35 - lost) + [line(sender, 2, queued=1)] * 5 + [line(sender, 1, discarded=1, missed=[slow])] * lost
    assert lines == wanted


def test_sender_without_echo_is_named_as_one_that_missed_its_message(world: World) -> None:
    sender, other, listener = world.connect(b"a"), world.connect(b"a", b"b"), tapper(world)
    lines = []
    for packet in (b"CMSG echo/off", message(b"a"), message(b"b"), b"CMSG echo/on", message(b"a")):
        world.send(sender, packet)
        world.run()
        lines += [facts for facts, _ in told(world.receive(listener))]
    assert lines == [line(sender, 1, missed=[sender]), line(sender, 1), line(sender, 2)]
    assert len(world.receive(other)) == 3


def test_receipt_for_a_message_does_not_hide_who_missed_it(world: World) -> None:
    sender, listener = world.connect(b"a"), tapper(world)
    for packet in (b"CMSG echo/off", b"CMSG receipt/always\0t", message(b"a")):
        world.send(sender, packet)
    world.run()
    assert [facts for facts, _ in told(world.receive(listener))] == [line(sender, 0, missed=[sender])]


def test_client_that_ends_in_a_batch_has_missed_what_it_did_not_get(make_world: MakeWorld) -> None:
    """It is full after some messages of the batch, and wants to be ended then: the others reach a connection that is ending."""
    world = make_world(LimitSettings(queue_packets=2))
    fragile, quick = world.connect(b"a", send_buffer=5_000), world.connect(b"a")
    world.send(fragile, b"CMSG blocking/hard/error")
    world.run()
    sender, listener = world.connect(), tapper(world)
    for _ in range(40):
        world.send(sender, message(b"a", bytes(1_000)))
        world.send(sender, b"CMSG receipt/always\0t")
    world.run()
    assert fragile not in world.switch.connections()
    lines = [facts for facts, _ in told(world.receive(listener))]
    assert len(lines) == len(world.receive(quick)) == 40
    counts = [(facts["recipients"], facts.get("missed")) for facts in lines]
    assert counts == sorted(counts, key=[(2, None), (1, [fragile]), (1, None)].index)
    assert (1, [fragile]) in counts


@pytest.mark.parametrize(("count", "named"), [(MISSED, True), (MISSED + 1, False)])
def test_more_than_can_be_named_are_not_named_at_all(make_world: MakeWorld, count: int, named: bool) -> None:
    world = make_world(LimitSettings())
    slow = [world.connect(b"a", send_buffer=5_000) for _ in range(count)]
    for client in slow:
        world.send(client, b"CMSG blocking/soft/discard")
    world.run()
    sender, listener = world.connect(), tapper(world)
    for _ in range(12):
        world.send(sender, message(b"a", bytes(1_000)))
        world.run()
    last = [facts for facts, _ in told(world.receive(listener))][-1]
    assert last == line(sender, 0, discarded=count, missed=slow if named else [])


@pytest.mark.parametrize("mode", [b"blocking/soft/block", b"blocking/hard/block"])
def test_tap_that_does_not_read_slows_nobody_and_is_told_what_it_missed(make_world: MakeWorld, mode: bytes) -> None:
    world = make_world(LimitSettings(queue_packets=10))
    lazy, quick, sender = tapper(world, send_buffer=5_000), world.connect(b"a"), world.connect()
    for client in (lazy, quick, sender):
        world.switch.set_party(client, 1_000, blocks_others=True)
    world.send(lazy, b"CMSG " + mode)
    for _ in range(200):
        assert world.send(sender, message(b"a", bytes(1_000)))
        world.run()
        assert len(world.receive(quick)) == 1
    packets = world.drain(lazy)
    lost = sum(int(packet.partition(b"\0")[2]) for packet in packets if packet.startswith(b"CMSG !/bus/lost"))
    assert lost > 100
    assert lost + sum(packet.startswith(HEAD) for packet in packets) == 200


def test_flood_of_one_user_does_not_hide_another_from_a_tap(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(queue_packets=40))
    lazy, flooder, quiet = tapper(world, send_buffer=5_000), world.connect(), world.connect()
    for number, client in enumerate((lazy, flooder, quiet)):
        world.switch.set_party(client, 1_000 + number)
    for _ in range(200):
        world.send(flooder, message(b"flood", bytes(500)))
        world.run()
    world.send(quiet, message(b"secret", b"deed"))
    world.run()
    assert any(packet.endswith(message(b"secret", b"deed")) for packet in world.drain(lazy))


def test_tap_that_would_rather_be_ended_is_in_the_middle_of_a_batch(make_world: MakeWorld) -> None:
    """It is ended as a recipient of the very batch of which it was to be told."""
    world = make_world(LimitSettings(queue_packets=5))
    both = world.connect(b"a", send_buffer=5_000)
    for wish in (b"CMSG blocking/hard/error", b"CMSG tap/on\0"):
        world.send(both, wish)
    world.run()
    sender, witness = world.connect(), tapper(world)
    for _ in range(60):
        world.send(sender, message(b"a", bytes(1_000)))
    world.run()
    assert both not in world.switch.connections()
    assert len(told(world.receive(witness))) == 60


def test_report_goes_to_the_taps_whose_pattern_takes_the_key(world: World) -> None:
    everything, lost, other = tapper(world), tapper(world, b"!/bus/lost"), tapper(world, b"a")
    world.switch.report(b"!/bus/lost", HEAD + b"{}\n", uid=0)
    assert [world.receive(each) for each in (everything, lost, other)] == [[HEAD + b"{}\n"], [HEAD + b"{}\n"], []]


def test_many_taps_share_what_waits(world: World) -> None:
    taps = [tapper(world, send_buffer=5_000) for _ in range(10)]
    sender = world.connect()
    sent = [message(b"a", b"%d " % number + bytes(1_000)) for number in range(60)]
    for packet in sent:
        world.send(sender, packet)
    world.run()
    for each in taps:
        assert [rest for _, rest in told(world.drain(each))] == sent


@pytest.mark.parametrize("way", ["report", "announce"])
def test_what_a_user_causes_takes_no_more_of_a_queue_than_its_messages(make_world: MakeWorld, way: str) -> None:
    """A flood of denials or events of one user must not push those of another out of the record."""
    world = make_world(LimitSettings(queue_packets=64, queue_bytes=64 << 10))
    listener = tapper(world, send_buffer=5_000)
    world.send(listener, b"SUB !/event/")
    world.run()
    world.switch.set_party(listener, 0, sight=Sight.ALL)
    hostile, victim = 65_533, 65_532

    def cause(uid: int) -> None:
        if way == "report":
            world.switch.report(b"a", HEAD + b'{"uid":%d}\n' % uid + bytes(300), uid=uid)
        else:
            world.switch.announce(b"MSG !/event/subscribe/1/%d\0" % uid + bytes(300), sight=Sight.OWN, uid=uid)

    for _ in range(500):
        cause(hostile)
    for _ in range(10):
        cause(victim)
    received: list[bytes] = []
    while more := world.receive(listener):
        received += more
        world.run()
    assert sum(b"%d" % victim in packet for packet in received) == 10
    lost = sum(int(packet.partition(b"\0")[2]) for packet in received if packet.startswith(b"CMSG !/bus/lost"))
    assert lost + sum(b"%d" % hostile in packet for packet in received) == 500
