"""The blocking bus with one that takes batches: what leaves together, and what is taken apart."""

from __future__ import annotations

import pytest

from sbus import Bus, Closed, Disconnected, Gap, Item, Message, Overflow, PayloadTooLarge, Reconnected, RemoteRefusal, TimedOut
from sbus.outgoing import POSTED_BYTES, POSTED_SECONDS
from tests.unit.sbus.conftest import WAIT_SECONDS, FakeBus


def asked(bus: Bus) -> None:
    """Let *bus* learn that batches are taken."""
    with bus.coalesce():
        bus.ping()
    assert bus._session.outgoing.takes_batches


def fill(bus: Bus) -> int:
    """Publish until no more is taken, and return how many messages were. The bus object's time-out must be 0."""
    for count in range(1_000_000):
        try:
            bus.publish("a", b"%d" % count)
        except TimedOut:
            return count
    raise AssertionError("the socket has no end")


def numbered(received: list[bytes]) -> list[int]:
    return [int(packet.partition(b"\0")[2]) for packet in received if packet.startswith(b"MSG")]


def test_what_is_published_in_one_scope_leaves_together_in_order(batching: FakeBus) -> None:
    with Bus.connect(batching.address) as bus:
        asked(bus)
        peer = batching.peer()
        bus._link.clock = lambda: 0.0
        with bus.coalesce():
            for number in range(100):
                bus.publish("a", b"%d" % number)
            assert numbered(peer.received) == []
        bus.ping()
        assert numbered(peer.received) == list(range(100))
        assert peer.batches == [100]
        assert bus.statistics.batches_sent == 1
        bus.publish("a", b"100")
        bus.publish("a", b"101")
        bus.ping()
        assert peer.batches == [100], "what is published outside leaves at once"
        assert bus.statistics.unsent == 0


def test_what_is_gathered_leaves_when_it_is_enough(batching: FakeBus) -> None:
    with Bus.connect(batching.address) as bus:
        asked(bus)
        bus._link.clock = lambda: 0.0
        size = POSTED_BYTES // 10
        with bus.coalesce():
            for number in range(10):
                bus.publish("a", b"x" * size)
                assert bool(bus._session.outgoing) == (number < 9)


def test_what_is_gathered_leaves_when_time_has_passed(batching: FakeBus) -> None:
    now = 0.0
    with Bus.connect(batching.address) as bus:
        asked(bus)
        bus._link.clock = lambda: now
        with bus.coalesce():
            for _ in range(3):
                bus.publish("a", b"1")
            now = POSTED_SECONDS * 0.9
            bus.publish("a", b"1")
            assert len(bus._session.outgoing) == 4
            now = POSTED_SECONDS
            bus.publish("a", b"1")
            assert not bus._session.outgoing
            bus.publish("a", b"1")
            assert len(bus._session.outgoing) == 1, "the time of the next batch begins with its first packet"


def test_nothing_is_waited_for_while_something_waits_to_be_sent(batching: FakeBus) -> None:
    """Each of these would wait forever if the packet that it depends on were still in this process."""
    with Bus.connect(batching.address, timeout=WAIT_SECONDS) as bus, bus.subscribe("a") as sub:
        asked(bus)
        bus._link.clock = lambda: 0.0
        with bus.coalesce():
            bus.publish("a", b"0")
            assert sub.receive(WAIT_SECONDS) == Message(b"a", b"0")
            bus.publish("a", b"1")
            assert next(iter(sub)) == Message(b"a", b"1")
            bus.publish("a", b"2")
            assert sub.receive_many(timeout=WAIT_SECONDS) == [Message(b"a", b"2")]
            bus.publish("a", b"3")
            bus.ping()
            assert sub.receive(0) == Message(b"a", b"3")
            bus.publish("a", b"4")
            bus.flush()
            assert not bus._session.outgoing
            bus.tell("echo/off")
            bus.publish("a", b"5")
        peer = batching.peer()
        bus.ping()
        assert numbered(peer.received) == list(range(6))
        assert peer.received.index(b"CMSG echo/off") < peer.received.index(b"MSG a\x005")


def test_scopes_may_stand_in_each_other(batching: FakeBus) -> None:
    with Bus.connect(batching.address) as bus:
        asked(bus)
        bus._link.clock = lambda: 0.0
        with bus.coalesce():
            bus.publish("a", b"0")
            with bus.coalesce():
                bus.publish("a", b"1")
            assert len(bus._session.outgoing) == 2
        assert not bus._session.outgoing


def publish_and_fail(bus: Bus) -> None:
    bus.publish("a", b"0")
    raise ZeroDivisionError


def test_an_error_in_the_scope_loses_nothing(batching: FakeBus) -> None:
    with Bus.connect(batching.address) as bus:
        asked(bus)
        with pytest.raises(ZeroDivisionError), bus.coalesce():
            publish_and_fail(bus)
        bus.ping()
        assert numbered(batching.peer().received) == [0]


@pytest.mark.parametrize("batching_on", [True, False])
def test_without_batches_each_message_leaves_at_once(fake: FakeBus, batching_on: bool) -> None:
    """With a bus that does not know them, and with one that does but is not asked."""
    fake.takes_batches = not batching_on
    with Bus.connect(fake.address, batching=batching_on) as bus:
        with bus.coalesce():
            bus.ping()
            for number in range(5):
                bus.publish("a", b"%d" % number)
                assert not bus._session.outgoing
        bus.ping()
        peer = fake.peer()
        assert numbered(peer.received) == list(range(5))
        assert peer.batches == []
        assert bus.statistics.batchless == int(batching_on)
        assert (b"CMSG !/bus/features" in peer.received) == batching_on


def test_batches_are_wanted_by_who_subscribes_unless_the_program_says_otherwise(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a"), bus.subscribe("b"):
        assert fake.peer().received.count(b"CMSG batch/on") == 1
    with Bus.connect(fake.address) as bus:
        bus.tell("batch/off")
        with bus.subscribe("a"):
            assert b"CMSG batch/on" not in fake.peer().received
    with Bus.connect(fake.address, batching=False) as bus, bus.subscribe("a"):
        assert b"CMSG batch/on" not in fake.peer().received
    with Bus.connect(fake.address) as bus:
        bus.publish("a")
        bus.ping()
        assert b"CMSG batch/on" not in fake.peer().received


def test_a_refusal_in_a_scope_does_not_affect_others(batching: FakeBus) -> None:
    with Bus.connect(batching.address) as bus:
        asked(bus)
        with bus.coalesce():
            bus.publish("a", "1")
            bus.publish("!/x", "1")
            bus.publish("b", "1")
            assert bus.control("!/bus/stats", "{}") == b"{}"
        with pytest.raises(RemoteRefusal, match="EPERM !/x is reserved"):
            bus.ping()
        bus.ping()


def test_on_a_full_socket_what_is_too_late_is_not_sent_and_what_was_taken_is(batching: FakeBus) -> None:
    with Bus.connect(batching.address, timeout=WAIT_SECONDS) as bus:
        asked(bus)
        peer = batching.peer()
        peer.gate.clear()
        bus._link.timeout = 0.0
        scope = bus.coalesce()
        scope.__enter__()
        count = fill(bus)
        for _ in range(3):
            with pytest.raises(TimedOut, match="publishing"):
                bus.publish("a", b"-1")
        with pytest.raises(TimedOut, match="flushing"):
            scope.__exit__(None, None, None)
        peer.gate.set()
        bus._link.timeout = WAIT_SECONDS
        bus.publish("a", b"%d" % count)
        bus.ping()
        assert numbered(peer.received) == list(range(count + 1))


def test_closing_sends_what_was_gathered(batching: FakeBus) -> None:
    with Bus.connect(batching.address) as bus:
        asked(bus)
        bus._link.clock = lambda: 0.0
        with bus.coalesce():
            for number in range(3):
                bus.publish("a", b"%d" % number)
            bus.close()
            with pytest.raises(Closed):
                bus.publish("a")
    peer = batching.peer()
    peer.thread.join(WAIT_SECONDS)
    assert numbered(peer.received) == [0, 1, 2]
    assert bus.statistics.unsent == 0


def publish_and_lose(bus: Bus, fake: FakeBus) -> None:
    """Publish, and have the bus end the connection."""
    for _ in range(3):
        bus.publish("a")
    fake.peer().hang_up()


def test_what_can_not_leave_any_more_is_counted(batching: FakeBus) -> None:
    bus = Bus.connect(batching.address)
    asked(bus)
    bus._link.clock = lambda: 0.0
    with pytest.raises(Disconnected), bus.coalesce():
        publish_and_lose(bus, batching)
    assert bus.statistics.unsent == 3
    with pytest.raises(Disconnected), bus.coalesce():
        pass
    bus.close()


def test_what_was_taken_leaves_on_the_next_connection_behind_modes_and_patterns(batching: FakeBus) -> None:
    with Bus.connect(batching.address, timeout=WAIT_SECONDS, reconnect=True) as bus, bus.subscribe("a") as sub:
        asked(bus)
        bus.tell("order/stack")
        bus._link.clock = lambda: 0.0
        with bus.coalesce():
            bus.publish("a", b"0")
            bus.publish("a", b"1")
            batching.peer().hang_up()
            assert isinstance(sub.receive(WAIT_SECONDS), Reconnected)
            assert [sub.receive(WAIT_SECONDS), sub.receive(WAIT_SECONDS)] == [Message(b"a", b"0"), Message(b"a", b"1")]
        received = batching.peer().received
        assert received[:2] == [b"CMSG batch/on", b"CMSG order/stack"]
        assert received.index(b"SUB a") < received.index(b"MSG a\x000") < received.index(b"MSG a\x001")
        assert bus.statistics.unsent == 0


def test_a_batch_is_taken_apart_in_order_with_what_is_between(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as sub:
        packets = [
            b"MSG a\x001",
            b"MSG a\x002",
            b"CMSG !/bus/lost\x003",
            b"MSG a\x004",
            b"CMSG !/from/7/!/cred/1/2/3\0MSG a\x005",
            b"MSG a\x006",
        ]
        fake.peer().say_together(*packets)
        items = [sub.receive(WAIT_SECONDS) for _ in range(6)]
        assert [item.payload if isinstance(item, Message) else item for item in items] == [b"1", b"2", Gap(3), b"4", b"5", b"6"]
        assert [isinstance(item, Message) and item.sender is not None for item in items] == [False] * 4 + [True, False]
        statistics = bus.statistics
        assert (statistics.batches_received, statistics.delivered, statistics.lost_remote) == (1, 5, 3)
        assert statistics.received == 8, "the packets in the batch, and two pongs: of connect and of subscribe"


def test_each_subscription_gets_its_own_out_of_a_batch(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as one, bus.subscribe("b", "*") as two:
        fake.peer().say_together(b"MSG a\x001", b"MSG b\x002", b"MSG a\x003")
        assert [one.receive(WAIT_SECONDS), one.receive(WAIT_SECONDS)] == [Message(b"a", b"1"), Message(b"a", b"3")]
        assert two.receive_many() == [Message(b"a", b"1"), Message(b"b", b"2"), Message(b"a", b"3")]


def test_what_is_left_of_a_batch_is_still_there(fake: FakeBus) -> None:
    """Iteration may end anywhere, and another way of receiving go on."""
    messages = [Message(b"a", b"%d" % number) for number in range(7)]
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as sub:
        fake.peer().say_together(*(b"MSG a\0" + each.payload for each in messages))
        seen: list[Item] = []
        for item in sub:
            seen.append(item)
            if len(seen) == 2:
                break
        seen.append(sub.receive(0))
        seen += sub.receive_many(2, 0)
        seen.append(next(iter(sub)))
        bus.close()
        seen += sub.receive_many(timeout=0)
        assert seen == messages
        with pytest.raises(Closed):
            sub.receive(0)


def test_lists_come_as_what_waits(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as sub:
        peer = fake.peer()
        peer.say_together(b"MSG a\x001", b"MSG a\x002", b"MSG a\x003")
        lists = sub.batches(2)
        assert next(lists) == [Message(b"a", b"1"), Message(b"a", b"2")]
        assert next(lists) == [Message(b"a", b"3")]
        peer.say(b"MSG a\x004")
        assert next(lists) == [Message(b"a", b"4")]
        with pytest.raises(ValueError, match="at least 1"):
            sub.receive_many(0)
        with pytest.raises(TimedOut):
            sub.receive_many(timeout=0)
        sub.close()
        assert list(lists) == []


def test_a_refusal_is_reported_before_the_rest_of_a_batch_is_read(fake: FakeBus) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as sub:
        peer = fake.peer()
        peer.say_together(b"MSG a\x001", b"MSG a\x002")
        items = iter(sub)
        assert next(items) == Message(b"a", b"1")
        peer.say(b"CMSG !/bus/error\0EPERM no")
        bus.publish("b")  # so that the error precedes the call's own barrier
        bus.control("!/bus/stats", "")
        refused: list[RemoteRefusal] = []
        bus.on_refused = refused.append
        assert next(items) == Message(b"a", b"2")
        assert len(refused) == 1


@pytest.mark.parametrize("overflow", list(Overflow))
def test_a_batch_meets_the_bounds_of_a_queue_as_its_messages_would_alone(fake: FakeBus, overflow: Overflow) -> None:
    with Bus.connect(fake.address, queue_packets=3, overflow=overflow) as bus, bus.subscribe("a") as sub:
        fake.peer().say_together(*(b"MSG a\0%d" % number for number in range(5)))
        items = sub.receive_many(timeout=WAIT_SECONDS)
        payloads = [item.payload if isinstance(item, Message) else item for item in items]
        if overflow is Overflow.DISCARD:
            assert payloads == [b"0", b"1", b"2", Gap(2)]
            assert bus.statistics.lost_local == 2
        else:
            assert payloads == [b"0", b"1", b"2", b"3", b"4"]
            assert not bus._session.stalled


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (b"CMSG !/batch\0", "a malformed batch: it contains no packet"),
        (b"CMSG !/batch\0\7\0\0\0MSG a\x001\xff", "a malformed batch: 1 bytes left for a length"),
        (b"CMSG !/batch\0\7\0\0\0MSG a\x001\x09\0\0\0MSG a\x002", "a malformed batch: 7 bytes left for a packet of 9 bytes"),
        (b"CMSG !/batch\0\x11\0\0\0CMSG !/batch\0\0\0\0\0", "a malformed batch: it contains another batch"),
        (b"CMSG !/batch", "the bus sent an invalid packet"),
    ],
)
@pytest.mark.parametrize("subscriptions", [1, 2])
def test_a_malformed_batch_ends_the_connection_behind_what_was_good_of_it(
    fake: FakeBus, batch: bytes, says: str, subscriptions: int
) -> None:
    with Bus.connect(fake.address) as bus, bus.subscribe("a") as sub:
        if subscriptions > 1:
            bus.subscribe("b")
        fake.peer().say(batch)
        if b"MSG a\x001" in batch:
            assert sub.receive(WAIT_SECONDS) == Message(b"a", b"1")
        with pytest.raises(Disconnected, match=says):
            sub.receive(WAIT_SECONDS)


def test_a_program_makes_no_batches_of_its_own(batching: FakeBus) -> None:
    with Bus.connect(batching.address) as bus:
        for send in (bus.control, bus.tell):
            with pytest.raises(ValueError, match="coalesce"):
                send("!/batch", b"\1\0\0\0x")
        with pytest.raises(PayloadTooLarge), bus.coalesce():
            bus.publish("a", b"x" * bus._session.outgoing.packet_limit)


def test_the_end_of_the_connection_during_a_flush_is_raised(batching: FakeBus) -> None:
    """What was gathered is lost with it, so flushing must not say that all is well."""
    bus = Bus.connect(batching.address)
    peer = batching.peer()
    peer.gate.clear()
    scope = bus.coalesce()
    scope.__enter__()
    bus._session.outgoing.post(b"MSG a\0x")
    peer.hang_up()
    with pytest.raises(Disconnected):
        bus.flush()
    assert bus.statistics.unsent == 1
    scope.__exit__(None, None, None)


def test_closing_a_bus_that_does_not_read_ends_in_time_and_counts(batching: FakeBus) -> None:
    bus = Bus.connect(batching.address, timeout=WAIT_SECONDS)
    asked(bus)
    peer = batching.peer()
    peer.gate.clear()
    bus._link.timeout = 0.0
    scope = bus.coalesce()
    scope.__enter__()
    fill(bus)
    waiting = len(bus._session.outgoing)
    bus.close()
    assert bus.statistics.unsent == waiting > 0
    scope.__exit__(None, None, None)
    peer.gate.set()
