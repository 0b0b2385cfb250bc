"""Rule 4 of sbusd/dataplane/contract.py: a bounded share of each turn for each connection and user, so that no client starves others."""

from __future__ import annotations

import time

import pytest

from sbus.protocol.packets import join_batch
from sbus_programs.config.settings import LimitSettings
from sbusd.dataplane.contract import UNREAD_BYTES, Sight
from tests.support.switch_harness import MakeHarness, SwitchHarness
from tests.support.wire import message


def test_a_flood_does_not_keep_another_waiting(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(batch_packets=4))
    listener, flooder, modest = harness.connect(b""), harness.connect(), harness.connect()
    for number in range(100):
        assert harness.send(flooder, message(b"flood", b"%d" % number))
    for number in range(3):
        assert harness.send(modest, message(b"modest", b"%d" % number))
    assert harness.switch.turn(0) == 2
    received = harness.receive(listener)
    assert [packet for packet in received if packet.startswith(b"MSG modest")] == [message(b"modest", b"%d" % n) for n in range(3)]
    assert len(received) == 7
    for turn in range(1, 25):
        assert harness.switch.turn(0) == 1
        assert harness.receive(listener) == [message(b"flood", b"%d" % number) for number in range(4 * turn, 4 * turn + 4)]
    assert harness.switch.turn(0) == 0


def test_many_connections_of_one_user_share_a_batch_while_another_user_waits(make_harness: MakeHarness) -> None:
    """Else who opens most connections would have most of the bus."""
    harness = make_harness(LimitSettings(batch_packets=16, turn_time=10.0))
    crowd = [harness.connect() for _ in range(8)]
    alone = harness.connect()
    for number in (*crowd, alone):
        harness.switch.set_party(number, 1_000 if number == alone else 2_000)
        for _ in range(16):
            harness.send(number, b"MSG unused\0")
    harness.switch.turn(0)
    assert harness.switch.connection_counters(alone).received_packets == 16
    assert [harness.switch.connection_counters(each).received_packets for each in crowd] == [2] * 8
    harness.run()
    assert {harness.switch.connection_counters(each).received_packets for each in crowd} == {16}


def test_connections_of_one_user_share_nothing_while_no_other_user_waits(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(batch_packets=16, turn_time=10.0))
    crowd = [harness.connect() for _ in range(8)]
    for number in crowd:
        harness.switch.set_party(number, 2_000)
        for _ in range(16):
            harness.send(number, b"MSG unused\0")
    harness.switch.turn(0)
    assert {harness.switch.connection_counters(each).received_packets for each in crowd} == {16}


THROTTLED_SECONDS = 0.2
"""How long a user is throttled for a control packet of :class:`SlowControlHarness`: four times as long as it took."""


class SlowControlHarness(SwitchHarness):
    """A bus whose every control packet takes a twentieth of a second: far more than a turn's time."""

    def control(self, connection: int, packet: bytes) -> None:
        super().control(connection, packet)
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("turn_time", "sight", "least", "most"),
    [(1e-2, Sight.PRESENCE, 1, 1), (8e-2, Sight.PRESENCE, 1, 2), (1e-2, Sight.ALL, 3, 3)],
    ids=["longer than a turn", "longer together", "owner of the bus"],
)
def test_a_user_with_many_requests_on_many_connections_is_served_after_others(
    make_harness: MakeHarness, turn_time: float, sight: Sight, least: int, most: int
) -> None:
    """Else 64 connections would have the time of 64 users. An owner of the bus could do worse to it anyway."""
    harness = make_harness(LimitSettings(turn_time=turn_time), of=SlowControlHarness)
    crowd, alone = [harness.connect() for _ in range(3)], harness.connect()
    for number in (*crowd, alone):
        harness.switch.set_party(number, 1_000 if number == alone else 2_000, sight=sight)
    for number in crowd:
        harness.send(number, b"CMSG nothing")
    began = time.monotonic()
    for turns in (1, 2, 3):
        harness.send(alone, b"MSG unused\0")
        harness.switch.turn(0)
        assert harness.switch.connection_counters(alone).received_packets == turns
    served = sum(harness.switch.connection_counters(each).received_packets for each in crowd)
    assert least <= served <= most or time.monotonic() - began >= THROTTLED_SECONDS
    # No other client is active now, so they are not throttled.
    harness.run()
    assert sum(harness.switch.connection_counters(each).received_packets for each in crowd) == 3


def test_a_throttled_user_that_closes_its_last_connection_and_comes_back_stays_throttled(make_harness: MakeHarness) -> None:
    """Else one connection after the other would have the time of the bus."""
    harness = make_harness(LimitSettings(turn_time=1e-2), of=SlowControlHarness)
    alone = harness.connect()
    harness.switch.set_party(alone, 1_000)
    served = 0
    began = time.monotonic()
    for _ in range(3):
        attacker = harness.connect()
        harness.switch.set_party(attacker, 2_000)
        harness.send(attacker, b"CMSG nothing")
        harness.send(alone, b"MSG unused\0")
        harness.switch.turn(0)
        served += harness.switch.connection_counters(attacker).received_packets
        harness.switch.disconnect(attacker, b"")
        harness.switch.take_down()
    assert served == 1 or time.monotonic() - began >= THROTTLED_SECONDS


def test_new_clients_are_served_between_many_connections_of_one_user(make_harness: MakeHarness) -> None:
    """One that gets ready meanwhile would wait for all of them. They take turns: none of them is left out."""
    harness = make_harness(LimitSettings(turn_time=1e-2), of=SlowControlHarness)
    crowd = [harness.connect() for _ in range(4)]
    for number in crowd:
        harness.switch.set_party(number, 2_000, sight=Sight.ALL)
        for _ in range(3):
            harness.send(number, b"CMSG nothing")
    for turns in range(1, 9):
        harness.switch.turn(0)
        served = [harness.switch.connection_counters(number).received_packets for number in crowd]
        assert sum(served) == turns
    assert min(served) >= 1


@pytest.mark.parametrize("in_batch", [False, True])
def test_packets_after_a_costly_request_wait_for_the_next_turn(make_harness: MakeHarness, in_batch: bool) -> None:
    """Else 64 of them, sent at once, would hold everybody up for as long as they take together."""
    harness = make_harness(LimitSettings(turn_time=1e-2), of=SlowControlHarness)
    asker, other = harness.connect(), harness.connect()
    harness.switch.set_party(asker, 1_000)
    harness.switch.set_party(other, 2_000)
    questions = [b"CMSG nothing"] * 3 + [b"MSG unused\0"]
    for packet in [join_batch(questions)] if in_batch else questions:
        harness.send(asker, packet)
    began = time.monotonic()
    for received in (1, 2):
        harness.send(other, b"MSG unused\0")
        harness.switch.turn(0)
        assert harness.switch.connection_counters(other).received_packets == received
        assert harness.switch.connection_counters(asker).received_packets == 1 or time.monotonic() - began >= THROTTLED_SECONDS
    harness.run()
    assert harness.switch.connection_counters(asker).received_packets == 4
    assert harness.receive(asker) == [b"CMSG nothing"] * 3


@pytest.mark.parametrize(("is_alone", "received"), [(True, 5), (False, 1)])
def test_a_socket_is_read_for_the_turns_time_while_others_are_there(make_harness: MakeHarness, is_alone: bool, received: int) -> None:
    """Who sends the largest packets fills it again as fast as it is read: 64 of them are milliseconds, and megabytes."""
    harness = make_harness(LimitSettings(turn_time=0.0))
    client, other = harness.connect(), harness.connect()
    harness.switch.set_party(client, 1_000)
    harness.switch.set_party(other, 2_000)
    began = time.monotonic()
    if not is_alone:
        harness.send(other, b"MSG unused\0")
        harness.run()
    for _ in range(5):
        harness.send(client, b"MSG unused\0")
    harness.switch.turn(0)
    # A client counts as active for a tenth of a second.
    assert harness.switch.connection_counters(client).received_packets == received or time.monotonic() - began >= 0.1
    harness.run()
    assert harness.switch.connection_counters(client).received_packets == 5


def test_packets_that_were_put_back_are_not_charged_once_handled(make_harness: MakeHarness) -> None:
    """It counts among what a user may have unhandled: if it went on to count, the user would not be read any more."""
    harness = make_harness(LimitSettings(turn_time=0.0))
    client = harness.connect()
    harness.switch.set_party(client, 1_000)
    rounds = 3 * UNREAD_BYTES // 150_000
    for _ in range(rounds):
        for packet in (b"CMSG x", b"MSG unused\0" + bytes(150_000)):
            assert harness.send(client, packet)
        harness.run()
        harness.receive(client)
    assert harness.switch.connection_counters(client).received_packets == 2 * rounds


@pytest.mark.parametrize("is_alone", [False, True])
def test_costly_packets_wait_while_another_user_comes_and_goes(make_harness: MakeHarness, is_alone: bool) -> None:
    """Else each would hold up the other user, whose next packet comes a moment after the bus has had nothing else to do."""
    harness = make_harness(LimitSettings(turn_time=1e-5), of=SlowControlHarness)
    costly, other = harness.connect(), harness.connect()
    harness.switch.set_party(costly, 2_000, sight=Sight.ALL)
    harness.switch.set_party(other, 2_000 if is_alone else 1_000)
    harness.send(costly, b"CMSG nothing")
    harness.switch.turn(0)
    harness.send(costly, b"CMSG nothing")
    harness.send(other, b"MSG unused\0")
    began = time.monotonic_ns()
    harness.switch.turn(0)  # the other is served, the costly one is throttled
    harness.switch.turn(0)
    is_moment_over = time.monotonic_ns() - began >= 1_000_000
    assert harness.switch.connection_counters(other).received_packets == 1
    assert harness.switch.connection_counters(costly).received_packets == 2 or not is_alone
    assert harness.switch.connection_counters(costly).received_packets == 1 or is_alone or is_moment_over
    harness.run()
    assert harness.switch.connection_counters(costly).received_packets == 2


def test_a_batch_that_has_many_recipients_is_handled_in_parts(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(turn_time=0.0))
    listeners, sender = [harness.connect(b"a") for _ in range(3)], harness.connect()
    packets = [message(b"a", b"%d" % number) for number in range(5)]
    for packet in (b"MSG unused\0", *packets):
        harness.send(sender, packet)
    harness.switch.turn(0)
    assert [harness.receive(each) for each in listeners] == [packets[:1]] * 3
    assert harness.switch.connection_counters(sender).received_packets == 2
    harness.run()
    assert [harness.receive(each) for each in listeners] == [packets[1:]] * 3


def test_connections_that_end_together_are_removed_one_by_one_in_order(make_harness: MakeHarness) -> None:
    harness = make_harness(LimitSettings(turn_time=0.0))
    ended = [harness.connect(b"a", b"a", b"b") for _ in range(4)]
    harness.events.clear()
    for number in ended:
        harness.switch.disconnect(number, b"")
    counts = []
    while harness.switch.turn(0):
        counts.append(sum(event[0] == "ended" for event in harness.events))
    assert counts[:4] == [1, 2, 3, 4]
    assert [event[1] for event in harness.events if event[0] == "ended"] == ended
    assert harness.switch.counters().connections == 0


def test_a_closed_connection_is_charged_until_its_last_pattern_is_erased(make_harness: MakeHarness) -> None:
    """Else who comes and goes has patterns in the router that no quota counts, and they are never fewer."""
    harness = make_harness(LimitSettings(turn_time=0.0))
    patterns = [b"%d" % number for number in range(20)]
    first, second = harness.connect(*patterns), harness.connect(*patterns)
    harness.events.clear()
    for number in (first, second):
        harness.switch.disconnect(number, b"")
    turns: dict[tuple[object, ...], int] = {}
    for turn in range(1_000):
        harness.switch.turn(0)
        for event in harness.events:
            turns.setdefault(event[:2], turn)
    assert turns["ended", first] == 0
    assert turns["ended", second] == 1
    assert 9 <= turns["closed", first] < turns["closed", second]


def test_all_ended_connections_can_be_removed_at_once(make_harness: MakeHarness) -> None:
    """A handover includes only live connections: a client that was disconnected must not continue in the next process."""
    harness = make_harness(LimitSettings(turn_time=0.0))
    numbers = [harness.connect(b"a") for _ in range(5)]
    for number in numbers[1:]:
        harness.switch.disconnect(number, b"")
    harness.switch.take_down()
    assert [event[1] for event in harness.events if event[0] == "ended"] == numbers[1:]
    assert list(harness.switch.connections()) == numbers[:1]
