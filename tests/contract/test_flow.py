"""Flow control: modes, orders, blocking, shares. Spec: sbus-protocol(7) §7."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import End, HardMode, Order, PublishRule, Refusal, SoftMode
from tests.support.switch_harness import SwitchHarness, refused

LIMITS = LimitSettings(queue_packets=8, queue_bytes=4 << 20, low_water=50, block_timeout=0.05)
LONG_TIMEOUTS = dataclasses.replace(LIMITS, block_timeout=600.0, progress_timeout=600.0)
BIG = 150_000
"""Bytes of a payload of which a socket takes two or three."""


@pytest.fixture
def harness() -> Iterator[SwitchHarness]:
    """A switch with small queues."""
    harness = SwitchHarness(LIMITS)
    yield harness
    harness.check_balance()
    harness.close()


def numbers(packets: list[bytes]) -> list[int]:
    """Return the numbers of the messages among packets."""
    return [int(packet[6:].split(b" ")[0]) for packet in packets if packet.startswith(b"MSG ")]


def lost(packets: list[bytes]) -> int:
    """Return the number of lost packets that was reported to a client."""
    return sum(int(packet.partition(b"\0")[2]) for packet in packets if packet.startswith(b"CMSG !/bus/lost"))


def publish(harness: SwitchHarness, sender: int, first: int, count: int, *, size: int = BIG, key: bytes = b"a") -> int:
    """Publish numbered messages until one is not taken; return how many were."""
    for number in range(first, first + count):
        if not harness.send(sender, b"MSG %b\0%d %b" % (key, number, bytes(size))):
            return number - first
        harness.run()
    return count


def same_user(harness: SwitchHarness, *clients: int) -> None:
    for client in clients:
        harness.switch.set_party(client, 1000)


def asks_to_block(harness: SwitchHarness, *others: int) -> int:
    """Return a subscriber with the mode blocking/hard/block, of the same user as *others*."""
    reader = harness.connect(b"a")
    same_user(harness, reader, *others)
    harness.send(reader, b"CMSG blocking/hard/block")
    harness.run()
    return reader


def is_blocking(harness: SwitchHarness, reader: int) -> bool:
    """Return whether a publisher waits for *reader*."""
    return bool(harness.switch.progress(reader).blocks)


def test_by_default_a_stopped_subscriber_blocks_no_publisher_of_its_user(harness: SwitchHarness) -> None:
    stopped, healthy, sender = harness.connect(b"a"), harness.connect(b"a"), harness.connect()
    same_user(harness, stopped, healthy, sender)
    received: list[int] = []
    for number in range(100):
        assert publish(harness, sender, number, 1) == 1
        received += numbers(harness.drain(healthy))
    assert received == list(range(100))
    packets = harness.drain(stopped)
    assert lost(packets) > 0
    assert len(numbers(packets)) + lost(packets) == 100
    assert harness.switch.counters().blocks == 0


def test_a_publisher_of_the_same_user_waits_and_nothing_is_lost() -> None:
    harness = SwitchHarness(LONG_TIMEOUTS)
    sender = harness.connect()
    reader = asks_to_block(harness, sender)
    taken = publish(harness, sender, 0, 100)
    assert 8 < taken < 100
    received: list[int] = []
    sent = taken
    while more := harness.receive(reader):
        received += numbers(more)
        harness.run()
        sent += publish(harness, sender, sent, 100 - sent)
    assert received == list(range(sent))
    assert sent == 100
    assert harness.switch.connection_counters(reader).lost_packets == 0
    harness.close()


def test_a_blocked_publisher_does_not_delay_other_clients() -> None:
    harness = SwitchHarness(LONG_TIMEOUTS)
    sender, other, bystander = harness.connect(), harness.connect(), harness.connect(b"b")
    asks_to_block(harness, sender, other, bystander)
    publish(harness, sender, 0, 100)
    harness.send(other, b"MSG b\x000 x")
    harness.run()
    assert numbers(harness.receive(bystander)) == [0]
    harness.close()


def test_another_user_cannot_be_blocked(harness: SwitchHarness) -> None:
    reader, sender = harness.connect(b"a"), harness.connect()
    harness.switch.set_party(reader, 1000)
    harness.switch.set_party(sender, 1001)
    for mode in (b"blocking/hard/block", b"blocking/soft/block"):
        harness.send(reader, b"CMSG " + mode)
    harness.run()
    assert publish(harness, sender, 0, 100) == 100
    packets = harness.drain(reader)
    assert len(numbers(packets)) + lost(packets) == 100
    assert lost(packets) > 0


def test_a_user_that_may_block_others_blocks_them() -> None:
    harness = SwitchHarness(LONG_TIMEOUTS)
    reader, sender = harness.connect(b"a"), harness.connect()
    harness.switch.set_party(reader, 1000, blocks_others=True)
    harness.switch.set_party(sender, 1001)
    harness.configure(reader, hard=HardMode.BLOCK)
    assert publish(harness, sender, 0, 100) < 100
    assert harness.switch.connection_counters(reader).lost_packets == 0
    harness.close()


@pytest.mark.parametrize("mode", [b"blocking/hard/block", b"blocking/soft/block"])
@pytest.mark.parametrize("bound", ["block_timeout", "progress_timeout"])
def test_a_recipient_that_blocks_for_too_long_falls_back_to_discard(mode: bytes, bound: str) -> None:
    bounds = {"block_timeout": 600.0, "progress_timeout": 600.0, bound: 0.5}
    limits = dataclasses.replace(LONG_TIMEOUTS, block_timeout=bounds["block_timeout"], progress_timeout=bounds["progress_timeout"])
    harness = SwitchHarness(limits)
    sender = harness.connect()
    reader = asks_to_block(harness, sender)
    harness.send(reader, b"CMSG " + mode)
    harness.run()
    # On a slow machine the time may be over before the publisher's socket is full: then the queue is drained, and filled again.
    while (sent := publish(harness, sender, 0, 100)) == 100:
        harness.drain(reader)
    fallbacks = harness.switch.counters().fallbacks
    while is_blocking(harness, reader):
        harness.switch.turn(1000)
    harness.run()
    sent += publish(harness, sender, sent, 100 - sent)
    assert sent == 100, "it waits no more, for the recipient takes nothing still"
    assert reader in harness.switch.connections()
    assert harness.switch.counters().fallbacks == fallbacks + 1
    packets = harness.drain(reader)
    assert lost(packets) > 0
    assert len(numbers(packets)) + lost(packets) == 100
    # Now that it has drained, it has its mode again.
    while publish(harness, sender, 0, 100) == 100:
        harness.drain(reader)
    assert is_blocking(harness, reader)
    harness.check_balance()
    harness.close()


def test_a_recipient_that_reads_anything_makes_progress() -> None:
    """It is looked whether the socket takes more when the time is over: epoll reports room only when most of the socket is free."""
    harness = SwitchHarness(dataclasses.replace(LONG_TIMEOUTS, progress_timeout=0.1))
    sender = harness.connect()
    reader = asks_to_block(harness, sender)
    # On a slow machine the time may be over while the queue is still being filled: then the queue is drained, and filled again.
    while not is_blocking(harness, reader):
        harness.drain(reader)
        publish(harness, sender, 0, 100, size=20_000)
    delivered = harness.switch.connection_counters(reader).delivered_packets
    fallbacks = harness.switch.counters().fallbacks
    assert harness.receive(reader, 1)
    while harness.switch.connection_counters(reader).delivered_packets == delivered and is_blocking(harness, reader):
        harness.switch.turn(1000)
    assert is_blocking(harness, reader)
    assert harness.switch.counters().fallbacks == fallbacks
    harness.close()


def test_a_blocked_publisher_that_hangs_up_is_read_to_its_end() -> None:
    harness = SwitchHarness(LONG_TIMEOUTS)
    sender = harness.connect()
    reader = asks_to_block(harness, sender)
    taken = publish(harness, sender, 0, 100)
    harness.hang_up(sender)
    harness.run()
    assert sender not in harness.switch.connections()
    assert numbers(harness.drain(reader)) == list(range(taken))
    harness.close()


def test_a_reader_that_ends_lets_its_publishers_go_on() -> None:
    harness = SwitchHarness(LONG_TIMEOUTS)
    sender = harness.connect()
    reader = asks_to_block(harness, sender)
    assert publish(harness, sender, 0, 100) < 100
    harness.hang_up(reader)
    harness.run()
    assert publish(harness, sender, 0, 100) == 100
    harness.close()


def test_soft_discard_queues_nothing(harness: SwitchHarness) -> None:
    reader, sender = harness.connect(b"a"), harness.connect()
    same_user(harness, reader, sender)
    harness.configure(reader, soft=SoftMode.DISCARD)
    assert publish(harness, sender, 0, 20) == 20
    assert harness.switch.connection_counters(reader).queued_packets <= 1, "the notice alone may wait"
    packets = harness.drain(reader)
    assert len(numbers(packets)) + lost(packets) == 20


@pytest.mark.parametrize("soft", [True, False])
def test_error_ends_the_client_with_enobufs(harness: SwitchHarness, soft: bool) -> None:
    reader, sender = harness.connect(b"a"), harness.connect()
    same_user(harness, reader, sender)
    if soft:
        harness.configure(reader, soft=SoftMode.ERROR)
    else:
        harness.configure(reader, hard=HardMode.ERROR)
    assert publish(harness, sender, 0, 40) == 40
    assert [report[2] for report in harness.events if report[:2] == ("ended", reader)] == [End.QUEUE_FULL]


def test_a_stack_delivers_the_newest_first(harness: SwitchHarness) -> None:
    reader, sender = harness.connect(b"a"), harness.connect()
    same_user(harness, reader, sender)
    harness.configure(reader, order=Order.STACK)
    publish(harness, sender, 0, 7)
    direct = 7 - harness.switch.connection_counters(reader).queued_packets
    assert 0 < direct < 6
    assert numbers(harness.drain(reader)) == [*range(direct), *reversed(range(direct, 7))]


def test_answers_of_the_bus_keep_their_order_in_a_stack(harness: SwitchHarness) -> None:
    reader, sender = harness.connect(b"a"), harness.connect()
    same_user(harness, reader, sender)
    harness.configure(reader, order=Order.STACK)
    publish(harness, sender, 0, 4)
    for token in range(3):
        harness.send(reader, b"CMSG !/bus/ping\0%d" % token)
    harness.run()
    assert [packet[-1:] for packet in harness.drain(reader) if packet.startswith(b"CMSG")] == [b"0", b"1", b"2"]


def test_random_order_frees_most_memory_first(harness: SwitchHarness) -> None:
    reader, twin, sender = harness.connect(b"a", b"c"), harness.connect(b"c"), harness.connect()
    same_user(harness, reader, twin, sender)
    for client in (reader, twin):
        harness.configure(client, order=Order.RANDOM)
        harness.configure(client, hard=HardMode.BLOCK)
    while not harness.switch.connection_counters(reader).queued_packets:
        publish(harness, sender, 0, 1)
    for client in (twin,):
        while not harness.switch.connection_counters(client).queued_packets:
            publish(harness, sender, 0, 1, key=b"c")
    # The twin holds what has the key c, so to send that frees nothing; of the others the largest frees most.
    for number, (key, size) in enumerate([(b"a", 10_000), (b"c", 100_000), (b"a", 50_000), (b"a", 20_000)], start=1):
        publish(harness, sender, number, 1, size=size, key=key)
    waiting = [number for number in numbers(harness.drain(reader)) if number]
    assert waiting == [3, 4, 1, 2]


def test_another_user_may_fill_only_half_of_the_free_queue(harness: SwitchHarness) -> None:
    reader, flooder, friend = harness.connect(b"a"), harness.connect(), harness.connect()
    for client, uid in ((reader, 1), (flooder, 2), (friend, 3)):
        harness.switch.set_party(client, uid)
    publish(harness, flooder, 0, 50)
    assert harness.switch.connection_counters(reader).queued_packets == 4
    publish(harness, friend, 1000, 1)
    assert 1000 in numbers(harness.drain(reader))


def test_queues_of_a_user_are_bounded_over_all_its_connections(harness: SwitchHarness) -> None:
    readers = [harness.connect(b"a") for _ in range(4)]
    sender = harness.connect()
    same_user(harness, *readers, sender)
    harness.switch.set_user_limits(1000, 5, 1 << 30)
    assert publish(harness, sender, 0, 30) == 30, "a quota is not a queue that drains: it never blocks a publisher"
    assert harness.switch.user_counters(1000).queued_packets == 5
    received = [harness.drain(reader) for reader in readers]
    assert all(len(numbers(packets)) + lost(packets) == 30 for packets in received)
    assert harness.switch.user_counters(1000).queued_packets == 0
    assert harness.switch.user_counters(1000).lost_packets == sum(map(lost, received))


def test_users_share_the_memory_of_the_bus() -> None:
    harness = SwitchHarness(LimitSettings(queued_memory=16 << 20, queue_bytes=1 << 30, queue_packets=1 << 20))
    readers = [harness.connect(b"%d" % uid) for uid in range(4)]
    sender = harness.connect()
    for uid, reader in enumerate(readers):
        harness.switch.set_party(reader, uid)
        harness.configure(reader, hard=HardMode.DISCARD)
        publish(harness, sender, 0, 150, key=b"%d" % uid)
    held = [harness.switch.user_counters(uid).queued_bytes for uid in range(4)]
    assert sum(held) < 16 << 20
    assert held == sorted(held, reverse=True)
    assert 0.4 < held[0] / (16 << 20) < 0.52, "half, and the packet that crossed it"
    assert held[3] > 0
    harness.close()


def test_the_first_publish_rule_about_key_and_sender_decides(harness: SwitchHarness) -> None:
    reader, free, bound = harness.connect(b""), harness.connect(), harness.connect()
    harness.switch.set_publish_rules((PublishRule(b"lab/open", True), PublishRule(b"lab/", False)))
    harness.switch.set_party(bound, 1000, rules=0b11)
    for sender in (free, bound):
        for key in (b"lab/x", b"lab/open", b"other"):
            harness.send(sender, b"MSG %b\0%d x" % (key, sender))
    harness.run()
    keys = [packet[4:].partition(b"\0")[0] for packet in harness.receive(reader)]
    assert keys == [b"lab/x", b"lab/open", b"other", b"lab/open", b"other"]
    assert harness.refusals(bound) == {Refusal.POLICY: (b"lab/x", 1)}
    assert harness.receive(bound) == [refused(Refusal.POLICY, b"lab/x")]
    harness.switch.set_publish_rules(())
    harness.send(bound, b"MSG lab/x\x000 x")
    harness.run()
    assert len(harness.receive(reader)) == 1, "a route that was cached under other rules does not hold"


def test_a_watch_can_end_in_its_own_callback(harness: SwitchHarness) -> None:
    import socket

    mine, theirs = socket.socketpair()
    called: list[int] = []

    def callback() -> None:
        called.append(1)
        harness.switch.unwatch(theirs.fileno())

    harness.switch.watch(theirs.fileno(), callback)
    mine.send(b"x")
    harness.run()
    assert called == [1]
    mine.close()
    theirs.close()


# -- pacing


def paced(harness: SwitchHarness) -> int:
    """Return a paced publisher of user 2000."""
    sender = harness.connect()
    harness.switch.set_party(sender, 2000)
    harness.send(sender, b"CMSG pace/on")
    harness.run()
    return sender


def of_another_user(harness: SwitchHarness, count: int = 1) -> list[int]:
    """Return subscribers of user 1000."""
    readers = [harness.connect(b"a") for _ in range(count)]
    same_user(harness, *readers)
    return readers


def read_and_publish(harness: SwitchHarness, readers: list[int], sender: int, count: int, *, size: int = BIG) -> list[list[int]]:
    """Publish numbered messages as fast as they are taken, with readers that take little in a round; return what each got."""
    received: list[list[int]] = [[] for _ in readers]
    sent = 0
    while sent < count:
        sent += publish(harness, sender, sent, min(count - sent, 100), size=size)
        for place, reader in enumerate(readers):
            received[place] += numbers(harness.receive(reader, 1 + 200 // size))
        harness.run()
    is_over = False
    while not is_over:
        rest = [numbers(harness.drain(reader)) for reader in readers]
        received = [[*got, *more] for got, more in zip(received, rest, strict=True)]
        is_over = not any(rest)
    return received


UNLIMITED = dataclasses.replace(LONG_TIMEOUTS, pace_limit=1.0)


@pytest.mark.parametrize("size", [10, 2_000, BIG])
def test_a_paced_publisher_loses_nothing_for_slow_readers_of_another_user(size: int) -> None:
    harness = SwitchHarness(UNLIMITED if size == BIG else dataclasses.replace(UNLIMITED, queue_packets=512))
    sender = paced(harness)
    readers = of_another_user(harness, 3)
    own = harness.connect(b"a")
    harness.switch.set_party(own, 2000)
    count = 60 if size == BIG else 1_000
    received = read_and_publish(harness, [*readers, own], sender, count, size=size)
    for got in received:
        assert got == list(range(count))
    assert harness.switch.counters().lost_packets == 0
    assert harness.switch.counters().blocks > 0
    harness.check_balance()
    harness.close()


def test_without_pacing_the_same_messages_are_lost() -> None:
    harness = SwitchHarness(UNLIMITED)
    sender = paced(harness)
    harness.send(sender, b"CMSG pace/off")
    (reader,) = of_another_user(harness)
    assert publish(harness, sender, 0, 60) == 60
    assert harness.switch.connection_counters(reader).lost_packets > 0
    harness.close()


def test_a_paced_publisher_has_the_same_queue_limit_as_others() -> None:
    harness = SwitchHarness(UNLIMITED)
    sender, friend = paced(harness), harness.connect()
    harness.switch.set_party(friend, 3000)
    (reader,) = of_another_user(harness)
    assert publish(harness, sender, 0, 60) < 60
    assert harness.switch.connection_counters(reader).queued_packets <= 4
    publish(harness, friend, 1000, 1)
    assert harness.switch.connection_counters(reader).lost_packets == 0
    harness.close()


def test_another_user_s_readers_hold_a_paced_publisher_for_a_tenth_of_each_second() -> None:
    """However many of them stand still: what is measured is what the switch itself counts, so a slow machine changes nothing."""
    harness = SwitchHarness(LONG_TIMEOUTS)
    sender, readers = paced(harness), of_another_user(harness, 5)
    while publish(harness, sender, 0, 100) == 100:  # on a slow machine the tenth is over before the publisher's socket is full
        harness.close()
        harness = SwitchHarness(LONG_TIMEOUTS)
        sender, readers = paced(harness), of_another_user(harness, 5)
    assert all(harness.switch.progress(reader).paces == (sender,) for reader in readers)
    while any(is_blocking(harness, reader) for reader in readers):
        harness.switch.turn(1000)
    assert set(harness.switch.progress(sender).held_us) == {1000}
    assert harness.switch.waits(sender).blocked_ms >= 99, "the time of the five is counted once, and all of it was used"
    # For one second none of them blocks it: messages that do not fit into their queues are discarded.
    harness.send(sender, b"MSG a\x000 " + bytes(BIG))
    harness.switch.turn(0)
    if harness.switch.progress(sender).held_us[1000] >= 100_000:
        assert not any(is_blocking(harness, reader) for reader in readers)
    while not harness.switch.connection_counters(readers[0]).lost_packets:
        publish(harness, sender, 0, 100)
    harness.close()


def test_with_no_time_to_wait_pacing_is_discarding() -> None:
    harness = SwitchHarness(dataclasses.replace(LONG_TIMEOUTS, pace_limit=0.0))
    sender = paced(harness)
    (reader,) = of_another_user(harness)
    assert publish(harness, sender, 0, 60) == 60
    assert harness.switch.connection_counters(reader).lost_packets > 0
    assert harness.switch.counters().blocks == 0
    harness.close()


def test_a_paced_publisher_waits_for_its_own_user_until_that_makes_no_progress() -> None:
    harness = SwitchHarness(dataclasses.replace(LONG_TIMEOUTS, progress_timeout=0.05))
    sender, reader = paced(harness), harness.connect(b"a")
    harness.switch.set_party(reader, 2000)
    sent = publish(harness, sender, 0, 100)
    while is_blocking(harness, reader):
        harness.switch.turn(1000)
    harness.run()
    assert sent + publish(harness, sender, sent, 100 - sent) == 100
    assert harness.switch.counters().fallbacks == 1
    packets = harness.drain(reader)
    assert lost(packets) > 0
    assert len(numbers(packets)) + lost(packets) == 100
    harness.close()


@pytest.mark.parametrize("mode", [b"blocking/soft/discard", b"blocking/soft/error"])
def test_a_reader_that_wants_nothing_queued_holds_up_no_paced_publisher(mode: bytes) -> None:
    harness = SwitchHarness(UNLIMITED)
    sender = paced(harness)
    (reader,) = of_another_user(harness)
    harness.send(reader, b"CMSG " + mode)
    harness.run()
    assert publish(harness, sender, 0, 60) == 60
    assert harness.switch.counters().blocks == 0
    harness.close()
