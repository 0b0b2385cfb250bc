"""Rule 4 of sbusd/dataplane/contract.py: a bounded share of each turn for each connection and user, so that nobody keeps others waiting."""

from __future__ import annotations

import time

import pytest

from sbusd.config.settings import LimitSettings
from sbusd.dataplane.contract import UNREAD_BYTES, Sight
from sbusd.protocol.batches import join_batch
from tests.support.wire import message
from tests.support.world import MakeWorld, World


def test_a_flood_does_not_keep_another_waiting(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(batch_packets=4))
    listener, flooder, modest = world.connect(b""), world.connect(), world.connect()
    for number in range(100):
        assert world.send(flooder, message(b"flood", b"%d" % number))
    for number in range(3):
        assert world.send(modest, message(b"modest", b"%d" % number))
    assert world.switch.turn(0) == 2
    received = world.receive(listener)
    assert [packet for packet in received if packet.startswith(b"MSG modest")] == [message(b"modest", b"%d" % n) for n in range(3)]
    assert len(received) == 7
    for turn in range(1, 25):
        assert world.switch.turn(0) == 1
        assert world.receive(listener) == [message(b"flood", b"%d" % number) for number in range(4 * turn, 4 * turn + 4)]
    assert world.switch.turn(0) == 0


def test_many_connections_of_one_user_share_a_batch_while_another_user_waits(make_world: MakeWorld) -> None:
    """Else who opens most connections would have most of the bus."""
    world = make_world(LimitSettings(batch_packets=16, turn_time=10.0))
    crowd = [world.connect() for _ in range(8)]
    alone = world.connect()
    for number in (*crowd, alone):
        world.switch.set_party(number, 1_000 if number == alone else 2_000)
        for _ in range(16):
            world.send(number, b"MSG nobody\0")
    world.switch.turn(0)
    assert world.switch.connection_counters(alone).received_packets == 16
    assert [world.switch.connection_counters(each).received_packets for each in crowd] == [2] * 8
    world.run()
    assert {world.switch.connection_counters(each).received_packets for each in crowd} == {16}


def test_connections_of_one_user_share_nothing_while_no_other_user_waits(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(batch_packets=16, turn_time=10.0))
    crowd = [world.connect() for _ in range(8)]
    for number in crowd:
        world.switch.set_party(number, 2_000)
        for _ in range(16):
            world.send(number, b"MSG nobody\0")
    world.switch.turn(0)
    assert {world.switch.connection_counters(each).received_packets for each in crowd} == {16}


class Asked(World):
    """A bus whose every control packet takes a twentieth of a second: far more than a turn's time."""

    def control(self, connection: int, packet: bytes) -> None:
        super().control(connection, packet)
        time.sleep(0.05)


@pytest.mark.parametrize(("sight", "asked"), [(Sight.PRESENCE, 1), (Sight.ALL, 3)])
def test_a_user_who_asks_much_by_many_connections_lets_others_go_first(make_world: MakeWorld, sight: Sight, asked: int) -> None:
    """Else 64 connections would have the time of 64 users. An owner of the bus could do worse to it anyway."""
    world = make_world(LimitSettings(turn_time=1e-2), of=Asked)
    crowd, alone = [world.connect() for _ in range(3)], world.connect()
    for number in (*crowd, alone):
        world.switch.set_party(number, 1_000 if number == alone else 2_000, sight=sight)
    for number in crowd:
        world.send(number, b"CMSG nothing")
    for turns in (1, 2, 3):
        world.send(alone, b"MSG nobody\0")
        world.switch.turn(0)
        assert world.switch.connection_counters(alone).received_packets == turns
    assert sum(world.switch.connection_counters(each).received_packets for each in crowd) == asked
    # Now nobody else has anything to do, so they wait for nobody.
    world.run()
    assert sum(world.switch.connection_counters(each).received_packets for each in crowd) == 3


def test_many_connections_of_one_user_are_not_all_served_before_it_is_looked_who_else_is_there(make_world: MakeWorld) -> None:
    """One that gets ready meanwhile would wait for all of them. They take turns: none of them is left out."""
    world = make_world(LimitSettings(turn_time=1e-2), of=Asked)
    crowd = [world.connect() for _ in range(4)]
    for number in crowd:
        world.switch.set_party(number, 2_000, sight=Sight.ALL)
        for _ in range(3):
            world.send(number, b"CMSG nothing")
    for turns in range(1, 9):
        world.switch.turn(0)
        served = [world.switch.connection_counters(number).received_packets for number in crowd]
        assert sum(served) == turns
    assert min(served) >= 1


@pytest.mark.parametrize("in_batch", [False, True])
def test_what_stands_behind_a_costly_question_waits_for_the_next_turn(make_world: MakeWorld, in_batch: bool) -> None:
    """Else 64 of them, sent at once, would hold everybody up for as long as they take together."""
    world = make_world(LimitSettings(turn_time=1e-2), of=Asked)
    asker, other = world.connect(), world.connect()
    world.switch.set_party(asker, 1_000)
    world.switch.set_party(other, 2_000)
    questions = [b"CMSG nothing"] * 3 + [b"MSG nobody\0"]
    for packet in [join_batch(questions)] if in_batch else questions:
        world.send(asker, packet)
    for received in (1, 2):
        world.send(other, b"MSG nobody\0")
        world.switch.turn(0)
        assert world.switch.connection_counters(other).received_packets == received
        assert world.switch.connection_counters(asker).received_packets == 1
    world.run()
    assert world.switch.connection_counters(asker).received_packets == 4
    assert world.receive(asker) == [b"CMSG nothing"] * 3


@pytest.mark.parametrize(("is_alone", "received"), [(True, 5), (False, 1)])
def test_a_socket_is_read_for_the_turns_time_while_others_are_there(make_world: MakeWorld, is_alone: bool, received: int) -> None:
    """Who sends the largest packets fills it again as fast as it is read: 64 of them are milliseconds, and megabytes."""
    world = make_world(LimitSettings(turn_time=0.0))
    client, other = world.connect(), world.connect()
    world.switch.set_party(client, 1_000)
    world.switch.set_party(other, 2_000)
    if not is_alone:
        world.send(other, b"MSG nobody\0")
        world.run()
    for _ in range(5):
        world.send(client, b"MSG nobody\0")
    world.switch.turn(0)
    assert world.switch.connection_counters(client).received_packets == received
    world.run()
    assert world.switch.connection_counters(client).received_packets == 5


def test_what_was_put_back_is_no_burden_once_it_is_handled(make_world: MakeWorld) -> None:
    """It counts among what a user may have unhandled: if it went on to count, the user would not be read any more."""
    world = make_world(LimitSettings(turn_time=0.0))
    client = world.connect()
    world.switch.set_party(client, 1_000)
    rounds = 3 * UNREAD_BYTES // 150_000
    for _ in range(rounds):
        for packet in (b"CMSG x", b"MSG nobody\0" + bytes(150_000)):
            assert world.send(client, packet)
        world.run()
        world.receive(client)
    assert world.switch.connection_counters(client).received_packets == 2 * rounds


@pytest.mark.parametrize("is_alone", [False, True])
def test_costly_packets_wait_while_another_user_comes_and_goes(make_world: MakeWorld, is_alone: bool) -> None:
    """Else each would hold up the other user, whose next packet comes a moment after the bus has had nothing else to do."""
    world = make_world(LimitSettings(turn_time=1e-5), of=Asked)
    costly, other = world.connect(), world.connect()
    world.switch.set_party(costly, 2_000, sight=Sight.ALL)
    world.switch.set_party(other, 2_000 if is_alone else 1_000)
    world.send(costly, b"CMSG nothing")
    world.switch.turn(0)
    world.send(costly, b"CMSG nothing")
    world.send(other, b"MSG nobody\0")
    began = time.monotonic_ns()
    world.switch.turn(0)  # the other is served, the costly one gives way
    world.switch.turn(0)
    is_moment_over = time.monotonic_ns() - began >= 1_000_000
    assert world.switch.connection_counters(other).received_packets == 1
    assert world.switch.connection_counters(costly).received_packets == 2 or not is_alone
    assert world.switch.connection_counters(costly).received_packets == 1 or is_alone or is_moment_over
    world.run()
    assert world.switch.connection_counters(costly).received_packets == 2


def test_a_batch_that_has_many_recipients_is_handled_in_parts(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(turn_time=0.0))
    listeners, sender = [world.connect(b"a") for _ in range(3)], world.connect()
    packets = [message(b"a", b"%d" % number) for number in range(5)]
    for packet in (b"MSG nobody\0", *packets):
        world.send(sender, packet)
    world.switch.turn(0)
    assert [world.receive(each) for each in listeners] == [packets[:1]] * 3
    assert world.switch.connection_counters(sender).received_packets == 2
    world.run()
    assert [world.receive(each) for each in listeners] == [packets[1:]] * 3


def test_connections_that_end_together_are_taken_down_one_by_one_in_their_order(make_world: MakeWorld) -> None:
    world = make_world(LimitSettings(turn_time=0.0))
    ended = [world.connect(b"a", b"a", b"b") for _ in range(4)]
    world.told.clear()
    for number in ended:
        world.switch.disconnect(number, b"")
    counts = []
    while world.switch.turn(0):
        counts.append(sum(told[0] == "ended" for told in world.told))
    assert counts[:4] == [1, 2, 3, 4]
    assert [told[1] for told in world.told if told[0] == "ended"] == ended
    assert world.switch.counters().connections == 0


def test_who_ends_with_many_patterns_is_charged_until_the_last_is_erased(make_world: MakeWorld) -> None:
    """Else who comes and goes has patterns in the router that no quota counts, and they are never fewer."""
    world = make_world(LimitSettings(turn_time=0.0))
    patterns = [b"%d" % number for number in range(20)]
    first, second = world.connect(*patterns), world.connect(*patterns)
    world.told.clear()
    for number in (first, second):
        world.switch.disconnect(number, b"")
    turns: dict[tuple[object, ...], int] = {}
    for turn in range(1_000):
        world.switch.turn(0)
        for told in world.told:
            turns.setdefault(told[:2], turn)
    assert turns["ended", first] == 0
    assert turns["ended", second] == 1
    assert 9 <= turns["closed", first] < turns["closed", second]


def test_all_that_have_ended_can_be_taken_down_at_once(make_world: MakeWorld) -> None:
    """A handover is about the living: who was told that it is disconnected must not go on with the next process."""
    world = make_world(LimitSettings(turn_time=0.0))
    numbers = [world.connect(b"a") for _ in range(5)]
    for number in numbers[1:]:
        world.switch.disconnect(number, b"")
    world.switch.take_down()
    assert [told[1] for told in world.told if told[0] == "ended"] == numbers[1:]
    assert list(world.switch.connections()) == numbers[:1]
