"""A switch that goes on where another was: every kind of thing that can be under way is, and clients cannot tell."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import TypeAdapter

from sbusd.config.settings import LimitSettings
from sbusd.dataplane.connection_state import ConnectionProgress, ConnectionSettings, Queue, SwitchTotals
from sbusd.dataplane.contract import HardMode, Order, PublishRule, SoftMode
from tests.support.wire import message
from tests.support.world import MakeWorld, World

LIMITS = LimitSettings(queue_packets=8, queue_bytes=4 << 20, low_water=40, block_timeout=600.0, progress_timeout=600.0)
BIG = bytes(60_000)


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """One world with small queues."""
    return make_world(LIMITS)


def _fill(world: World, sender: int, reader: int, count: int, first: int = 0) -> None:
    """Publish big packets to a reader that does not read."""
    for number in range(first, first + count):
        assert world.send(sender, message(b"a", b"%03d" % number + BIG))
        world.run()


def _numbers(packets: list[bytes]) -> list[int | bytes]:
    """Return the numbers of the messages, and other packets as they are."""
    return [int(packet[6:9]) if packet.startswith(b"MSG ") else packet for packet in packets]


def _busy(world: World, count: int = 8) -> tuple[int, int]:
    """Return a reader for whom packets wait and publishers too, and their publisher, both of user 1."""
    reader, sender = world.connect(b"a"), world.connect()
    for each in (reader, sender):
        world.set_party(each, 1)
    world.configure(reader, hard=HardMode.BLOCK)
    _fill(world, sender, reader, count)
    assert world.switch.connection_counters(reader).queued_packets
    return reader, sender


def test_what_waits_comes_in_its_order_and_once(world: World) -> None:
    reader, sender = _busy(world)
    world.hand_over()
    _fill(world, sender, reader, 2, 8)
    assert _numbers(world.drain(reader)) == list(range(10))
    world.check_balance()


@pytest.mark.parametrize("order", [Order.STACK, Order.RANDOM])
def test_an_order_of_its_own_goes_on_and_notes_go_first(world: World, order: Order) -> None:
    reader, _ = _busy(world)
    world.configure(reader, order=order)
    world.switch.send(reader, b"CMSG note\0one")
    world.switch.send(reader, b"CMSG note\0two")
    waiting = world.switch.connection_counters(reader).queued_packets
    world.hand_over()
    assert world.switch.connection_counters(reader).queued_packets == waiting
    received = _numbers(world.drain(reader))
    notes = [place for place, packet in enumerate(received) if isinstance(packet, bytes)]
    assert [received[place] for place in notes] == [b"CMSG note\0one", b"CMSG note\0two"]
    behind = received[notes[1] + 1 :]
    assert behind == sorted(behind, key=int, reverse=order is Order.STACK)
    assert len(behind) == waiting - 2


def test_a_loss_that_is_not_told_yet_is_told(world: World) -> None:
    reader, sender = _busy(world)
    world.configure(reader, hard=HardMode.DISCARD)
    _fill(world, sender, reader, 12, 8)
    lost = world.switch.connection_counters(reader).lost_packets
    assert lost
    world.hand_over()
    assert world.switch.connection_counters(reader).lost_packets == lost
    assert world.switch.user_counters(1).lost_packets == lost
    received = world.drain(reader)
    assert b"CMSG !/bus/lost\0%d" % lost in received
    assert ("lost", reader, lost) in world.told
    assert len(_numbers(received)) == 20 - lost + 1


def test_who_waits_for_another_waits_on(world: World) -> None:
    reader, sender = _busy(world, 9)
    while (before := world.switch.connection_counters(sender).received_packets) < 30:
        assert world.send(sender, message(b"a", b"%03d" % before + BIG))
        world.run()
        if world.switch.connection_counters(sender).received_packets == before:
            break
    world.hand_over()
    world.run()
    assert world.switch.progress(reader).blocks == (sender,)
    assert world.switch.connection_counters(sender).received_packets == before
    assert _numbers(world.drain(reader)) == list(range(before + 1))
    assert world.switch.progress(reader).blocks == ()


def test_a_mode_that_has_fallen_back_stays_so_until_the_queue_has_drained(world: World) -> None:
    reader, sender = world.connect(b"a"), world.connect()
    for each in (reader, sender):
        world.set_party(each, 1)
    world.configure(reader, hard=HardMode.BLOCK)
    world.limits = dataclasses.replace(LIMITS, progress_timeout=0.01)
    world.hand_over()
    while not world.switch.progress(reader).has_fallen_back:
        world.send(sender, message(b"a", b"000" + BIG))
        world.switch.turn(10)
    world.limits = LIMITS
    world.hand_over()
    world.run()
    assert world.switch.progress(reader).has_fallen_back
    for _ in range(20):
        assert world.send(sender, message(b"a", b"000" + BIG)), "nobody waits for it"
        world.run()
    world.drain(reader)
    assert not world.switch.progress(reader).has_fallen_back


def test_a_paced_publisher_waits_on_and_what_it_has_waited_counts(world: World) -> None:
    world.limits = dataclasses.replace(LIMITS, pace_limit=0.99)
    world.hand_over()
    reader, sender = world.connect(b"a"), world.connect()
    world.set_party(reader, 1)
    world.set_party(sender, 2)
    world.send(sender, b"CMSG pace/on")
    while not world.switch.progress(reader).paces:
        world.send(sender, message(b"a", b"000" + BIG))
        world.switch.turn(10)
    while world.switch.progress(sender).held_us.get(1, 0) < 100_000 and world.switch.progress(reader).paces:
        world.switch.turn(10)
    world.hand_over()
    assert world.switch.progress(sender).held_us[1] >= 100_000
    while world.switch.progress(reader).paces:
        world.switch.turn(1000)
    assert world.switch.progress(sender).held_us[1] >= 980_000
    world.run()
    sent = 0
    while not world.switch.connection_counters(reader).lost_packets:
        sent += world.send(sender, message(b"a", b"000" + BIG))
        world.run()
    assert sent


def test_the_time_of_a_block_goes_on(world: World) -> None:
    number = world.connect()
    other = world.connect()
    world.hand_over()
    world.switch.restore(number, ConnectionSettings(), ConnectionProgress(blocks=(other,), blocking_ms=599_000, idle_ms=598_000))
    world.switch.restore_all([], {}, SwitchTotals(), 1)
    assert 599_000 <= world.switch.progress(number).blocking_ms < 600_000
    assert 598_000 <= world.switch.progress(number).idle_ms < 600_000


def test_a_packet_of_several_queues_is_kept_once(world: World) -> None:
    readers = [world.connect(b"a") for _ in range(3)]
    sender = world.connect()
    _fill(world, sender, readers[0], 8)
    packets, queues = world.switch.queues()
    assert set(queues) == set(readers)
    assert len(packets) < sum(len(queue.waiting) for queue in queues.values())
    world.hand_over()
    assert world.switch.queues() == (packets, queues)
    for reader in readers:
        assert _numbers(world.drain(reader)) == list(range(8))


def test_settings_counters_and_numbers_go_on(world: World) -> None:
    world.set_publish_rules((PublishRule(b"no/", False),))
    number = world.connect(b"a", b"a", b"b/*")
    world.set_party(number, 7, rules=1)
    for name in (b"echo/off", b"blocking/soft/discard", b"blocking/hard/error", b"order/stack", b"pace/on"):
        world.send(number, b"CMSG " + name)
    world.send(number, message(b"no/x"))
    world.send(number, message(b"a"))
    world.run()
    before = (world.switch.settings(number), world.switch.connection_counters(number), world.switch.patterns(number))
    totals = world.switch.counters()
    assert before[0] == ConnectionSettings(False, SoftMode.DISCARD, HardMode.ERROR, Order.STACK, pace=True)
    assert before[2] == {b"a": 2, b"b/*": 1}
    world.hand_over()
    assert (world.switch.settings(number), world.switch.connection_counters(number), world.switch.patterns(number)) == before
    uncounted = {"cache_hits": 0, "cache_misses": 0, "turns": 0}
    assert world.switch.counters()._replace(**uncounted) == totals._replace(**uncounted)
    assert world.switch.next_connection() == number + 1


def test_a_connection_that_did_not_come_back_is_settled(world: World) -> None:
    """What waited for it was abandoned, and whom it blocked goes on."""
    number = world.connect()
    world.hand_over()
    tally = SwitchTotals(deliveries=3)
    world.switch.restore(number, ConnectionSettings(), ConnectionProgress(blocks=(99,), blocking_ms=5))
    world.switch.restore_all([b"x"], {99: Queue(((0, None, None), (0, 0, 3)), ((0, None, None),))}, tally, 50)
    assert world.switch.progress(number).blocks == ()
    assert world.switch.counters().abandoned_packets == 3
    assert world.switch.next_connection() == 50
    world.check_balance()


@pytest.mark.parametrize("kind", [ConnectionSettings, ConnectionProgress, Queue, SwitchTotals])
def test_an_older_bus_is_understood_and_a_newer_one_refused(kind: type) -> None:
    adapter: TypeAdapter[object] = TypeAdapter(kind)
    assert adapter.validate_json("{}") == kind()
    with pytest.raises(ValueError, match="of_a_newer_bus"):
        adapter.validate_json('{"of_a_newer_bus": 1}')
    for each in dataclasses.fields(kind):
        with pytest.raises(ValueError):
            adapter.validate_json(f'{{"{each.name}": {{"a": "x"}}}}')


def test_a_receipt_that_was_asked_for_is_still_given(world: World) -> None:
    number = world.connect()
    world.send(number, b"CMSG receipt/always\0tok\xff")
    world.run()
    world.hand_over()
    world.send(number, message(b"nobody"))
    world.send(number, message(b"nobody"))
    world.run()
    assert world.drain(number) == [b"CMSG !/bus/receipt\0tok\xff\x000"]
