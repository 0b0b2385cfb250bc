"""A switch that goes on where another was: every kind of thing that can be under way is, and clients cannot tell; ranges of numbers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import HardMode, Order, PublishRule, SoftMode
from sbusd.dataplane.switch_state import ConnectionProgress, ConnectionSettings, Queue, SwitchTotals, Within
from tests.support.switch_harness import MakeHarness, SwitchHarness
from tests.support.wire import message

LIMITS = LimitSettings(queue_packets=8, queue_bytes=4 << 20, low_water=40, block_timeout=600.0, progress_timeout=600.0)
BIG = bytes(60_000)


@pytest.fixture
def harness(make_harness: MakeHarness) -> SwitchHarness:
    """One harness with small queues."""
    return make_harness(LIMITS)


def _fill(harness: SwitchHarness, sender: int, reader: int, count: int, first: int = 0) -> None:
    """Publish big packets to a reader that does not read."""
    for number in range(first, first + count):
        assert harness.send(sender, message(b"a", b"%03d" % number + BIG))
        harness.run()


def _numbers(packets: list[bytes]) -> list[int | bytes]:
    """Return the numbers of the messages, and other packets as they are."""
    return [int(packet[6:9]) if packet.startswith(b"MSG ") else packet for packet in packets]


def _busy(harness: SwitchHarness, count: int = 8) -> tuple[int, int]:
    """Return a reader for whom packets wait and publishers too, and their publisher, both of user 1."""
    reader, sender = harness.connect(b"a"), harness.connect()
    for each in (reader, sender):
        harness.set_party(each, 1)
    harness.configure(reader, hard=HardMode.BLOCK)
    _fill(harness, sender, reader, count)
    assert harness.switch.connection_counters(reader).queued_packets
    return reader, sender


def test_queued_packets_are_delivered_in_order_and_once(harness: SwitchHarness) -> None:
    reader, sender = _busy(harness)
    harness.hand_over()
    _fill(harness, sender, reader, 2, 8)
    assert _numbers(harness.drain(reader)) == list(range(10))
    harness.check_balance()


@pytest.mark.parametrize("order", [Order.STACK, Order.RANDOM])
def test_a_queue_order_is_kept_and_loss_reports_come_first(harness: SwitchHarness, order: Order) -> None:
    reader, _ = _busy(harness)
    harness.configure(reader, order=order)
    harness.switch.send(reader, b"CMSG note\0one")
    harness.switch.send(reader, b"CMSG note\0two")
    waiting = harness.switch.connection_counters(reader).queued_packets
    harness.hand_over()
    assert harness.switch.connection_counters(reader).queued_packets == waiting
    received = _numbers(harness.drain(reader))
    notes = [place for place, packet in enumerate(received) if isinstance(packet, bytes)]
    assert [received[place] for place in notes] == [b"CMSG note\0one", b"CMSG note\0two"]
    behind = received[notes[1] + 1 :]
    assert behind == sorted(behind, key=int, reverse=order is Order.STACK)
    assert len(behind) == waiting - 2


def test_an_unreported_loss_is_reported_after_the_handover(harness: SwitchHarness) -> None:
    reader, sender = _busy(harness)
    harness.configure(reader, hard=HardMode.DISCARD)
    _fill(harness, sender, reader, 12, 8)
    lost = harness.switch.connection_counters(reader).lost_packets
    assert lost
    harness.hand_over()
    assert harness.switch.connection_counters(reader).lost_packets == lost
    assert harness.switch.user_counters(1).lost_packets == lost
    received = harness.drain(reader)
    assert b"CMSG !/bus/lost\0%d" % lost in received
    assert ("lost", reader, lost) in harness.events
    assert len(_numbers(received)) == 20 - lost + 1


def test_a_blocked_publisher_stays_blocked(harness: SwitchHarness) -> None:
    reader, sender = _busy(harness, 9)
    while (before := harness.switch.connection_counters(sender).received_packets) < 30:
        assert harness.send(sender, message(b"a", b"%03d" % before + BIG))
        harness.run()
        if harness.switch.connection_counters(sender).received_packets == before:
            break
    harness.hand_over()
    harness.run()
    assert harness.switch.progress(reader).blocks == (sender,)
    assert harness.switch.connection_counters(sender).received_packets == before
    assert _numbers(harness.drain(reader)) == list(range(before + 1))
    assert harness.switch.progress(reader).blocks == ()


def test_a_mode_that_has_fallen_back_stays_so_until_the_queue_has_drained(harness: SwitchHarness) -> None:
    reader, sender = harness.connect(b"a"), harness.connect()
    for each in (reader, sender):
        harness.set_party(each, 1)
    harness.configure(reader, hard=HardMode.BLOCK)
    harness.limits = dataclasses.replace(LIMITS, progress_timeout=0.01)
    harness.hand_over()
    while not harness.switch.progress(reader).has_fallen_back:
        harness.send(sender, message(b"a", b"000" + BIG))
        harness.switch.turn(10)
    harness.limits = LIMITS
    harness.hand_over()
    harness.run()
    assert harness.switch.progress(reader).has_fallen_back
    for _ in range(20):
        assert harness.send(sender, message(b"a", b"000" + BIG)), "the publisher is blocked"
        harness.run()
    harness.drain(reader)
    assert not harness.switch.progress(reader).has_fallen_back


def test_a_paced_publisher_stays_blocked_and_keeps_its_time(harness: SwitchHarness) -> None:
    harness.limits = dataclasses.replace(LIMITS, pace_limit=0.99)
    harness.hand_over()
    reader, sender = harness.connect(b"a"), harness.connect()
    harness.set_party(reader, 1)
    harness.set_party(sender, 2)
    harness.send(sender, b"CMSG pace/on")
    while not harness.switch.progress(reader).paces:
        harness.send(sender, message(b"a", b"000" + BIG))
        harness.switch.turn(10)
    while harness.switch.progress(sender).held_us.get(1, 0) < 100_000 and harness.switch.progress(reader).paces:
        harness.switch.turn(10)
    harness.hand_over()
    assert harness.switch.progress(sender).held_us[1] >= 100_000
    while harness.switch.progress(reader).paces:
        harness.switch.turn(1000)
    assert harness.switch.progress(sender).held_us[1] >= 980_000
    harness.run()
    lost = harness.switch.connection_counters(reader).lost_packets  # of what the sender sent before, if the machine was busy
    assert harness.send(sender, message(b"a", b"000" + BIG))
    harness.run()
    assert harness.switch.connection_counters(reader).lost_packets == lost + 1, "the publisher is still blocked"


def test_the_time_of_a_block_continues(harness: SwitchHarness) -> None:
    number = harness.connect()
    other = harness.connect()
    harness.hand_over()
    harness.switch.restore(number, ConnectionSettings(), ConnectionProgress(blocks=(other,), blocking_ms=590_000, idle_ms=589_000))
    harness.switch.restore_all([], {}, SwitchTotals(), 1)
    assert 590_000 <= harness.switch.progress(number).blocking_ms < 600_000
    assert 589_000 <= harness.switch.progress(number).idle_ms < 600_000


def test_a_packet_of_several_queues_is_kept_once(harness: SwitchHarness) -> None:
    readers = [harness.connect(b"a") for _ in range(3)]
    sender = harness.connect()
    _fill(harness, sender, readers[0], 8)
    packets, queues = harness.switch.queues()
    assert set(queues) == set(readers)
    assert len(packets) < sum(len(queue.waiting) for queue in queues.values())
    harness.hand_over()
    assert harness.switch.queues() == (packets, queues)
    for reader in readers:
        assert _numbers(harness.drain(reader)) == list(range(8))


def test_settings_counters_and_numbers_go_on(harness: SwitchHarness) -> None:
    harness.set_publish_rules((PublishRule(b"no/", False),))
    number = harness.connect(b"a", b"a", b"b/*")
    harness.set_party(number, 7, rules=1)
    for name in (b"echo/off", b"blocking/soft/discard", b"blocking/hard/error", b"order/stack", b"pace/on"):
        harness.send(number, b"CMSG " + name)
    harness.send(number, message(b"no/x"))
    harness.send(number, message(b"a"))
    harness.run()
    before = (harness.switch.settings(number), harness.switch.connection_counters(number), harness.switch.patterns(number))
    totals = harness.switch.counters()
    assert before[0] == ConnectionSettings(False, SoftMode.DISCARD, HardMode.ERROR, Order.STACK, pace=True)
    assert before[2] == {b"a": 2, b"b/*": 1}
    harness.hand_over()
    assert (harness.switch.settings(number), harness.switch.connection_counters(number), harness.switch.patterns(number)) == before
    uncounted = {"cache_hits": 0, "cache_misses": 0, "turns": 0}
    assert harness.switch.counters()._replace(**uncounted) == totals._replace(**uncounted)
    assert harness.switch.next_connection() == number + 1


def test_a_connection_that_did_not_come_back_is_settled(harness: SwitchHarness) -> None:
    """What waited for it was abandoned, and whom it blocked goes on."""
    number = harness.connect()
    harness.hand_over()
    tally = SwitchTotals(deliveries=3)
    harness.switch.restore(number, ConnectionSettings(), ConnectionProgress(blocks=(99,), blocking_ms=5))
    harness.switch.restore_all([b"x"], {99: Queue(((0, None, None), (0, 0, 3)), ((0, None, None),))}, tally, 50)
    assert harness.switch.progress(number).blocks == ()
    assert harness.switch.counters().abandoned_packets == 3
    assert harness.switch.next_connection() == 50
    harness.check_balance()


@pytest.mark.parametrize("kind", [ConnectionSettings, ConnectionProgress, Queue, SwitchTotals])
def test_an_older_bus_is_understood_and_a_newer_one_refused(kind: type) -> None:
    adapter: TypeAdapter[object] = TypeAdapter(kind)
    assert adapter.validate_json("{}") == kind()
    with pytest.raises(ValueError, match="of_a_newer_bus"):
        adapter.validate_json('{"of_a_newer_bus": 1}')
    for each in dataclasses.fields(kind):
        with pytest.raises(ValueError):
            adapter.validate_json(f'{{"{each.name}": {{"a": "x"}}}}')


def test_a_receipt_that_was_asked_for_is_still_given(harness: SwitchHarness) -> None:
    number = harness.connect()
    harness.send(number, b"CMSG receipt/always\0tok\xff")
    harness.run()
    harness.hand_over()
    harness.send(number, message(b"unused"))
    harness.send(number, message(b"unused"))
    harness.run()
    assert harness.drain(number) == [b"CMSG !/bus/receipt\0tok\xff\x000"]


@dataclass
class Held:
    number: Annotated[int, Within(1, 10)] = 1
    seconds: Annotated[float, Within(0, 1 << 63)] = 0.0


@pytest.mark.parametrize("text", ['{"number": 1}', '{"number": 9}', '{"seconds": 0}', '{"seconds": 9e18}'])
def test_a_value_within_its_bounds_is_accepted(text: str) -> None:
    assert isinstance(TypeAdapter(Held).validate_json(text), Held)


@pytest.mark.parametrize(
    "text", ['{"number": 0}', '{"number": 10}', '{"seconds": -1}', '{"seconds": NaN}', '{"seconds": Infinity}', '{"seconds": 1e19}']
)
def test_a_value_outside_of_its_bounds_is_rejected(text: str) -> None:
    with pytest.raises(ValidationError, match="is not in the range"):
        TypeAdapter(Held).validate_json(text)
