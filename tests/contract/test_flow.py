"""Flow control: modes, orders, blocking, shares. Spec: sbus-protocol(7) §7."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from sbusd.config.settings import LimitSettings
from sbusd.dataplane.contract import End, HardMode, Order, PublishRule, Refusal, SoftMode
from tests.support.world import World

LIMITS = LimitSettings(queue_packets=8, queue_bytes=4 << 20, low_water=50, block_timeout=0.05)
PATIENT = dataclasses.replace(LIMITS, block_timeout=600.0, progress_timeout=600.0)
BIG = 150_000
"""Bytes of a payload of which a socket takes two or three."""


@pytest.fixture
def world() -> Iterator[World]:
    """A world in which little may wait."""
    world = World(LIMITS)
    yield world
    world.check_balance()
    world.close()


def numbers(packets: list[bytes]) -> list[int]:
    """Return the numbers of the messages among packets."""
    return [int(packet[6:].split(b" ")[0]) for packet in packets if packet.startswith(b"MSG ")]


def lost(packets: list[bytes]) -> int:
    """Return how many packets a client was told that it lost."""
    return sum(int(packet.partition(b"\0")[2]) for packet in packets if packet.startswith(b"CMSG !/bus/lost"))


def publish(world: World, sender: int, first: int, count: int, *, size: int = BIG, key: bytes = b"a") -> int:
    """Publish numbered messages until one is not taken; return how many were."""
    for number in range(first, first + count):
        if not world.send(sender, b"MSG %b\0%d %b" % (key, number, bytes(size))):
            return number - first
        world.run()
    return count


def same_user(world: World, *clients: int) -> None:
    for client in clients:
        world.switch.set_party(client, 1000)


def asks_to_block(world: World, *others: int) -> int:
    """Return a subscriber with the mode blocking/hard/block, of the same user as *others*."""
    reader = world.connect(b"a")
    same_user(world, reader, *others)
    world.send(reader, b"CMSG blocking/hard/block")
    world.run()
    return reader


def is_blocking(world: World, reader: int) -> bool:
    """Return whether a publisher waits for *reader*."""
    return bool(world.switch.progress(reader).blocks)


def test_by_default_a_stopped_subscriber_blocks_no_publisher_of_its_user(world: World) -> None:
    stopped, healthy, sender = world.connect(b"a"), world.connect(b"a"), world.connect()
    same_user(world, stopped, healthy, sender)
    received: list[int] = []
    for number in range(100):
        assert publish(world, sender, number, 1) == 1
        received += numbers(world.drain(healthy))
    assert received == list(range(100))
    packets = world.drain(stopped)
    assert lost(packets) > 0
    assert len(numbers(packets)) + lost(packets) == 100
    assert world.switch.counters().blocks == 0


def test_a_publisher_of_the_same_user_waits_and_nothing_is_lost() -> None:
    world = World(PATIENT)
    sender = world.connect()
    reader = asks_to_block(world, sender)
    taken = publish(world, sender, 0, 100)
    assert 8 < taken < 100
    received: list[int] = []
    sent = taken
    while more := world.receive(reader):
        received += numbers(more)
        world.run()
        sent += publish(world, sender, sent, 100 - sent)
    assert received == list(range(sent))
    assert sent == 100
    assert world.switch.connection_counters(reader).lost_packets == 0
    world.close()


def test_a_blocked_publisher_stands_in_nobody_else_s_way() -> None:
    world = World(PATIENT)
    sender, other, bystander = world.connect(), world.connect(), world.connect(b"b")
    asks_to_block(world, sender, other, bystander)
    publish(world, sender, 0, 100)
    world.send(other, b"MSG b\x000 x")
    world.run()
    assert numbers(world.receive(bystander)) == [0]
    world.close()


def test_another_user_cannot_be_blocked(world: World) -> None:
    reader, sender = world.connect(b"a"), world.connect()
    world.switch.set_party(reader, 1000)
    world.switch.set_party(sender, 1001)
    for mode in (b"blocking/hard/block", b"blocking/soft/block"):
        world.send(reader, b"CMSG " + mode)
    assert publish(world, sender, 0, 100) == 100
    packets = world.drain(reader)
    assert len(numbers(packets)) + lost(packets) == 100
    assert lost(packets) > 0


def test_whom_policy_lets_block_others_does() -> None:
    world = World(PATIENT)
    reader, sender = world.connect(b"a"), world.connect()
    world.switch.set_party(reader, 1000, blocks_others=True)
    world.switch.set_party(sender, 1001)
    world.configure(reader, hard=HardMode.BLOCK)
    assert publish(world, sender, 0, 100) < 100
    assert world.switch.connection_counters(reader).lost_packets == 0
    world.close()


@pytest.mark.parametrize("mode", [b"blocking/hard/block", b"blocking/soft/block"])
@pytest.mark.parametrize("bound", ["block_timeout", "progress_timeout"])
def test_a_recipient_that_blocks_for_too_long_falls_back_to_discard(mode: bytes, bound: str) -> None:
    bounds = {"block_timeout": 600.0, "progress_timeout": 600.0, bound: 0.5}
    limits = dataclasses.replace(PATIENT, block_timeout=bounds["block_timeout"], progress_timeout=bounds["progress_timeout"])
    world = World(limits)
    sender = world.connect()
    reader = asks_to_block(world, sender)
    world.send(reader, b"CMSG " + mode)
    sent = publish(world, sender, 0, 100)
    assert sent < 100
    while is_blocking(world, reader):
        world.switch.turn(1000)
    world.run()
    sent += publish(world, sender, sent, 100 - sent)
    assert sent == 100, "it waits no more, for the recipient takes nothing still"
    assert reader in world.switch.connections()
    assert world.switch.counters().fallbacks == 1
    packets = world.drain(reader)
    assert lost(packets) > 0
    assert len(numbers(packets)) + lost(packets) == 100
    # Now that it has drained, it has its mode again.
    assert publish(world, sender, 0, 100) < 100
    assert is_blocking(world, reader)
    world.check_balance()
    world.close()


def test_a_recipient_that_takes_anything_makes_progress() -> None:
    """It is looked whether the socket takes more when the time is over: epoll reports room only when most of the socket is free."""
    world = World(dataclasses.replace(PATIENT, progress_timeout=0.1))
    sender = world.connect()
    reader = asks_to_block(world, sender)
    # On a slow machine the time may be over while the queue is still being filled: then the queue is drained, and filled again.
    while not is_blocking(world, reader):
        world.drain(reader)
        publish(world, sender, 0, 100, size=20_000)
    delivered = world.switch.connection_counters(reader).delivered_packets
    fallbacks = world.switch.counters().fallbacks
    assert world.receive(reader, 1)
    while world.switch.connection_counters(reader).delivered_packets == delivered and is_blocking(world, reader):
        world.switch.turn(1000)
    assert is_blocking(world, reader)
    assert world.switch.counters().fallbacks == fallbacks
    world.close()


def test_a_blocked_publisher_that_hangs_up_is_read_to_its_end() -> None:
    world = World(PATIENT)
    sender = world.connect()
    reader = asks_to_block(world, sender)
    taken = publish(world, sender, 0, 100)
    world.hang_up(sender)
    world.run()
    assert sender not in world.switch.connections()
    assert numbers(world.drain(reader)) == list(range(taken))
    world.close()


def test_a_reader_that_ends_lets_its_publishers_go_on() -> None:
    world = World(PATIENT)
    sender = world.connect()
    reader = asks_to_block(world, sender)
    assert publish(world, sender, 0, 100) < 100
    world.hang_up(reader)
    world.run()
    assert publish(world, sender, 0, 100) == 100
    world.close()


def test_soft_discard_queues_nothing(world: World) -> None:
    reader, sender = world.connect(b"a"), world.connect()
    same_user(world, reader, sender)
    world.configure(reader, soft=SoftMode.DISCARD)
    assert publish(world, sender, 0, 20) == 20
    assert world.switch.connection_counters(reader).queued_packets <= 1, "the notice alone may wait"
    packets = world.drain(reader)
    assert len(numbers(packets)) + lost(packets) == 20


@pytest.mark.parametrize("soft", [True, False])
def test_error_ends_the_client_with_enobufs(world: World, soft: bool) -> None:
    reader, sender = world.connect(b"a"), world.connect()
    same_user(world, reader, sender)
    if soft:
        world.configure(reader, soft=SoftMode.ERROR)
    else:
        world.configure(reader, hard=HardMode.ERROR)
    assert publish(world, sender, 0, 40) == 40
    assert [report[2] for report in world.told if report[:2] == ("ended", reader)] == [End.QUEUE_FULL]


def test_a_stack_delivers_the_newest_first(world: World) -> None:
    reader, sender = world.connect(b"a"), world.connect()
    same_user(world, reader, sender)
    world.configure(reader, order=Order.STACK)
    publish(world, sender, 0, 7)
    direct = 7 - world.switch.connection_counters(reader).queued_packets
    assert 0 < direct < 6
    assert numbers(world.drain(reader)) == [*range(direct), *reversed(range(direct, 7))]


def test_answers_of_the_bus_keep_their_order_in_a_stack(world: World) -> None:
    reader, sender = world.connect(b"a"), world.connect()
    same_user(world, reader, sender)
    world.configure(reader, order=Order.STACK)
    publish(world, sender, 0, 4)
    for token in range(3):
        world.send(reader, b"CMSG !/bus/ping\0%d" % token)
    world.run()
    assert [packet[-1:] for packet in world.drain(reader) if packet.startswith(b"CMSG")] == [b"0", b"1", b"2"]


def test_random_order_frees_most_memory_first(world: World) -> None:
    reader, twin, sender = world.connect(b"a", b"c"), world.connect(b"c"), world.connect()
    same_user(world, reader, twin, sender)
    for client in (reader, twin):
        world.configure(client, order=Order.RANDOM)
        world.configure(client, hard=HardMode.BLOCK)
    while not world.switch.connection_counters(reader).queued_packets:
        publish(world, sender, 0, 1)
    for client in (twin,):
        while not world.switch.connection_counters(client).queued_packets:
            publish(world, sender, 0, 1, key=b"c")
    # The twin holds what has the key c, so to send that frees nothing; of the others the largest frees most.
    for number, (key, size) in enumerate([(b"a", 10_000), (b"c", 100_000), (b"a", 50_000), (b"a", 20_000)], start=1):
        publish(world, sender, number, 1, size=size, key=key)
    waiting = [number for number in numbers(world.drain(reader)) if number]
    assert waiting == [3, 4, 1, 2]


def test_a_guest_takes_half_of_a_queue_and_leaves_room_for_the_next(world: World) -> None:
    reader, flooder, friend = world.connect(b"a"), world.connect(), world.connect()
    for client, uid in ((reader, 1), (flooder, 2), (friend, 3)):
        world.switch.set_party(client, uid)
    publish(world, flooder, 0, 50)
    assert world.switch.connection_counters(reader).queued_packets == 4
    publish(world, friend, 1000, 1)
    assert 1000 in numbers(world.drain(reader))


def test_what_waits_for_a_user_is_bounded_over_all_its_connections(world: World) -> None:
    readers = [world.connect(b"a") for _ in range(4)]
    sender = world.connect()
    same_user(world, *readers, sender)
    world.switch.set_user_limits(1000, 5, 1 << 30)
    assert publish(world, sender, 0, 30) == 30, "a quota is no queue that drains: nobody waits for it"
    assert world.switch.user_counters(1000).queued_packets == 5
    received = [world.drain(reader) for reader in readers]
    assert all(len(numbers(packets)) + lost(packets) == 30 for packets in received)
    assert world.switch.user_counters(1000).queued_packets == 0
    assert world.switch.user_counters(1000).lost_packets == sum(map(lost, received))


def test_users_share_the_memory_of_the_bus() -> None:
    world = World(LimitSettings(queued_memory=16 << 20, queue_bytes=1 << 30, queue_packets=1 << 20))
    readers = [world.connect(b"%d" % uid) for uid in range(4)]
    sender = world.connect()
    for uid, reader in enumerate(readers):
        world.switch.set_party(reader, uid)
        world.configure(reader, hard=HardMode.DISCARD)
        publish(world, sender, 0, 150, key=b"%d" % uid)
    held = [world.switch.user_counters(uid).queued_bytes for uid in range(4)]
    assert sum(held) < 16 << 20
    assert held == sorted(held, reverse=True)
    assert 0.4 < held[0] / (16 << 20) < 0.52, "half, and the packet that crossed it"
    assert held[3] > 0
    world.close()


def test_the_first_publish_rule_about_key_and_sender_decides(world: World) -> None:
    reader, free, bound = world.connect(b""), world.connect(), world.connect()
    world.switch.set_publish_rules((PublishRule(b"lab/open", True), PublishRule(b"lab/", False)))
    world.switch.set_party(bound, 1000, rules=0b11)
    for sender in (free, bound):
        for key in (b"lab/x", b"lab/open", b"other"):
            world.send(sender, b"MSG %b\0%d x" % (key, sender))
    world.run()
    keys = [packet[4:].partition(b"\0")[0] for packet in world.receive(reader)]
    assert keys == [b"lab/x", b"lab/open", b"other", b"lab/open", b"other"]
    assert ("refused", bound, Refusal.POLICY, b"lab/x", 1) in world.told
    world.switch.set_publish_rules(())
    world.send(bound, b"MSG lab/x\x000 x")
    world.run()
    assert len(world.receive(reader)) == 1, "a route that was cached under other rules does not hold"


def test_a_watch_can_end_in_its_own_callback(world: World) -> None:
    import socket

    mine, theirs = socket.socketpair()
    called: list[int] = []

    def callback() -> None:
        called.append(1)
        world.switch.unwatch(theirs.fileno())

    world.switch.watch(theirs.fileno(), callback)
    mine.send(b"x")
    world.run()
    assert called == [1]
    mine.close()
    theirs.close()


# -- pacing


def paced(world: World) -> int:
    """Return a paced publisher of user 2000."""
    sender = world.connect()
    world.switch.set_party(sender, 2000)
    world.send(sender, b"CMSG pace/on")
    world.run()
    return sender


def of_another_user(world: World, count: int = 1) -> list[int]:
    """Return subscribers of user 1000."""
    readers = [world.connect(b"a") for _ in range(count)]
    same_user(world, *readers)
    return readers


def read_and_publish(world: World, readers: list[int], sender: int, count: int, *, size: int = BIG) -> list[list[int]]:
    """Publish numbered messages as fast as they are taken, with readers that take little in a round; return what each got."""
    received: list[list[int]] = [[] for _ in readers]
    sent = 0
    while sent < count:
        sent += publish(world, sender, sent, min(count - sent, 100), size=size)
        for place, reader in enumerate(readers):
            received[place] += numbers(world.receive(reader, 1 + 200 // size))
        world.run()
    is_over = False
    while not is_over:
        rest = [numbers(world.drain(reader)) for reader in readers]
        received = [[*got, *more] for got, more in zip(received, rest, strict=True)]
        is_over = not any(rest)
    return received


UNLIMITED = dataclasses.replace(PATIENT, pace_limit=1.0)


@pytest.mark.parametrize("size", [10, 2_000, BIG])
def test_a_paced_publisher_loses_nothing_for_slow_readers_of_another_user(size: int) -> None:
    world = World(UNLIMITED if size == BIG else dataclasses.replace(UNLIMITED, queue_packets=512))
    sender = paced(world)
    readers = of_another_user(world, 3)
    own = world.connect(b"a")
    world.switch.set_party(own, 2000)
    count = 60 if size == BIG else 1_000
    received = read_and_publish(world, [*readers, own], sender, count, size=size)
    for got in received:
        assert got == list(range(count))
    assert world.switch.counters().lost_packets == 0
    assert world.switch.counters().blocks > 0
    world.check_balance()
    world.close()


def test_without_pacing_the_same_messages_are_lost() -> None:
    world = World(UNLIMITED)
    sender = paced(world)
    world.send(sender, b"CMSG pace/off")
    (reader,) = of_another_user(world)
    assert publish(world, sender, 0, 60) == 60
    assert world.switch.connection_counters(reader).lost_packets > 0
    world.close()


def test_a_paced_publisher_takes_no_more_of_a_queue_than_another() -> None:
    world = World(UNLIMITED)
    sender, friend = paced(world), world.connect()
    world.switch.set_party(friend, 3000)
    (reader,) = of_another_user(world)
    assert publish(world, sender, 0, 60) < 60
    assert world.switch.connection_counters(reader).queued_packets <= 4
    publish(world, friend, 1000, 1)
    assert world.switch.connection_counters(reader).lost_packets == 0
    world.close()


def test_another_user_s_readers_hold_a_paced_publisher_for_a_tenth_of_each_second() -> None:
    """However many of them stand still: what is measured is what the switch itself counts, so a slow machine changes nothing."""
    world = World(PATIENT)
    sender = paced(world)
    readers = of_another_user(world, 5)
    sent = publish(world, sender, 0, 100)
    assert sent < 100
    assert all(world.switch.progress(reader).paces == (sender,) for reader in readers)
    while any(is_blocking(world, reader) for reader in readers):
        world.switch.turn(1000)
    held = world.switch.progress(sender).held_us
    assert set(held) == {1000}
    assert held[1000] >= 99_000, "the time of the five is counted once, and all of it was used"
    # Until a second has passed it waits for none of them: what they cannot take is discarded for them.
    world.send(sender, b"MSG a\x000 " + bytes(BIG))
    world.switch.turn(0)
    if world.switch.progress(sender).held_us[1000] >= 100_000:
        assert not any(is_blocking(world, reader) for reader in readers)
    while not world.switch.connection_counters(readers[0]).lost_packets:
        publish(world, sender, 0, 100)
    world.close()


def test_with_no_time_to_wait_pacing_is_discarding() -> None:
    world = World(dataclasses.replace(PATIENT, pace_limit=0.0))
    sender = paced(world)
    (reader,) = of_another_user(world)
    assert publish(world, sender, 0, 60) == 60
    assert world.switch.connection_counters(reader).lost_packets > 0
    assert world.switch.counters().blocks == 0
    world.close()


def test_a_paced_publisher_waits_for_its_own_user_until_that_makes_no_progress() -> None:
    world = World(dataclasses.replace(PATIENT, progress_timeout=0.05))
    sender, reader = paced(world), world.connect(b"a")
    world.switch.set_party(reader, 2000)
    sent = publish(world, sender, 0, 100)
    while is_blocking(world, reader):
        world.switch.turn(1000)
    world.run()
    assert sent + publish(world, sender, sent, 100 - sent) == 100
    assert world.switch.counters().fallbacks == 1
    packets = world.drain(reader)
    assert lost(packets) > 0
    assert len(numbers(packets)) + lost(packets) == 100
    world.close()


@pytest.mark.parametrize("mode", [b"blocking/soft/discard", b"blocking/soft/error"])
def test_a_reader_that_wants_nothing_queued_holds_up_no_paced_publisher(mode: bytes) -> None:
    world = World(UNLIMITED)
    sender = paced(world)
    (reader,) = of_another_user(world)
    world.send(reader, b"CMSG " + mode)
    world.run()
    assert publish(world, sender, 0, 60) == 60
    assert world.switch.counters().blocks == 0
    world.close()
