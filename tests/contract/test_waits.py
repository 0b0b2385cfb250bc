"""Who blocks whom: what the switch counts, and what the answers to clients say. Spec: sbus-protocol(7) §6 and §7."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from sbusd.config.settings import DaemonSettings, LimitSettings
from sbusd.dataplane.blocking import NAMED_WAITS
from sbusd.dataplane.contract import Sight
from sbusd.protocol import controls
from tests.support.parlour import Guest, MakeParlour, Parlour
from tests.support.world import World

LIMITS = LimitSettings(queue_packets=8, queue_bytes=4 << 20, block_timeout=600.0, progress_timeout=600.0, pace_limit=1.0)
BIG = bytes(150_000)
"""A payload of which a socket takes two or three."""

ALICE, BOB = 1000, 2000

SECRET = b"!/cred//1000//"


@pytest.fixture
def world() -> Iterator[World]:
    """A world in which little may wait, and publishers wait for long."""
    world = World(LIMITS)
    yield world
    world.check_balance()
    world.close()


def guest_of(world: World, uid: int, *patterns: bytes, sight: Sight = Sight.OWN) -> int:
    number = world.connect(*patterns)
    world.switch.set_party(number, uid, sight=sight)
    return number


def fill(world: World, publisher: int, key: bytes = b"a") -> None:
    """Publish until the publisher is not read any more, or the same amount is discarded."""
    for _ in range(40):
        if not world.send(publisher, b"MSG %b\0%b" % (key, BIG)):
            return
        world.run()


def pass_time(world: World) -> None:
    """Let some milliseconds pass, by what the switch itself counts."""
    before = world.switch.user_waits(BOB).blocked_ms
    while world.switch.user_waits(BOB).blocked_ms < before + 5:
        world.switch.turn(1)


def paced(world: World, uid: int, sight: Sight = Sight.OWN) -> int:
    publisher = guest_of(world, uid, sight=sight)
    world.send(publisher, b"CMSG pace/on")
    world.run()
    return publisher


def test_who_waits_for_whom_is_known_from_both_sides(world: World) -> None:
    reader, publisher, other = guest_of(world, ALICE, b"a"), paced(world, BOB), guest_of(world, BOB)
    fill(world, publisher)
    pass_time(world)
    waits, blocking = world.switch.waits(publisher), world.switch.waits(reader)
    assert (waits.is_paced, waits.blocked_by_count, waits.blocks_count) == (True, 1, 0)
    assert [(each.connection, each.is_paced) for each in waits.blocked_by] == [(reader, True)]
    assert [(each.connection, each.is_paced) for each in blocking.blocks] == [(publisher, True)]
    assert (blocking.is_paced, blocking.blocked_by, blocking.blocks_count) == (False, (), 1)
    assert waits.blocked_by[0].ms >= 5
    assert 5 <= waits.blocked_ms <= world.switch.waits(reader).blocked_others_ms
    assert world.switch.blockers(10) == [reader]
    assert world.switch.user_waits(ALICE).blocked_others_ms >= 5
    assert world.switch.user_waits(ALICE).blocked_ms == world.switch.user_waits(BOB).blocked_others_ms == 0
    assert world.switch.waits(other) == (False, 0, 0, 0, 0, (), ())
    world.drain(reader)
    taken = world.switch.waits(publisher)
    assert (taken.blocked_by_count, taken.blocked_by, world.switch.blockers(10)) == (0, (), [])
    assert taken.blocked_ms >= 5
    world.switch.turn(20)
    assert world.switch.waits(publisher).blocked_ms == taken.blocked_ms, "the wait is over"
    assert abs(world.switch.user_waits(BOB).blocked_ms - taken.blocked_ms) <= 1, "each is rounded for itself"


def test_a_wait_for_several_counts_once_for_who_waits_and_for_each_who_is_waited_for(world: World) -> None:
    readers = [guest_of(world, ALICE, b"a") for _ in range(NAMED_WAITS + 2)]
    publisher = paced(world, BOB)
    fill(world, publisher)
    pass_time(world)
    waits = world.switch.waits(publisher)
    assert waits.blocked_by_count == len(readers)
    assert len(waits.blocked_by) == NAMED_WAITS
    assert {each.connection for each in waits.blocked_by} <= set(readers)
    held = [world.switch.waits(reader).blocked_others_ms for reader in readers]
    assert min(held) >= 5
    assert world.switch.user_waits(ALICE).blocked_others_ms >= sum(held) - 1, "each is rounded for itself"
    assert world.switch.user_waits(BOB).blocked_ms <= world.switch.user_waits(ALICE).blocked_others_ms // len(readers) + 1


@pytest.mark.parametrize("who", ["publisher", "reader"])
def test_who_ends_while_it_waits_or_is_waited_for_leaves_no_wait_behind(world: World, who: str) -> None:
    reader, publisher = guest_of(world, ALICE, b"a"), paced(world, BOB)
    stays = guest_of(world, BOB)
    fill(world, publisher)
    pass_time(world)
    world.switch.disconnect(publisher if who == "publisher" else reader)
    world.run()
    if who == "publisher":
        world.drain(reader)
    assert world.switch.blockers(10) == []
    before = world.switch.user_waits(BOB)
    assert before.blocked_ms >= 5
    world.switch.turn(20)
    assert world.switch.user_waits(BOB) == before
    assert world.switch.waits(stays).blocked_ms == 0


def test_a_restart_keeps_who_waits_and_for_how_long() -> None:
    world = World(LIMITS)
    reader, publisher = world.connect(b"a"), world.connect()
    world.set_party(reader, ALICE)
    world.set_party(publisher, BOB)
    world.send(publisher, b"CMSG pace/on")
    fill(world, publisher)
    pass_time(world)
    before = world.switch.waits(publisher), world.switch.waits(reader), world.switch.user_waits(ALICE)
    world.hand_over()
    waits, blocking = world.switch.waits(publisher), world.switch.waits(reader)
    assert [each.connection for each in waits.blocked_by] == [reader]
    assert waits.blocked_ms >= before[0].blocked_ms >= 5
    assert blocking.blocked_others_ms >= before[1].blocked_others_ms >= 5
    assert world.switch.user_waits(ALICE).blocked_others_ms >= before[2].blocked_others_ms
    assert world.switch.user_waits(BOB).blocked_ms >= 5
    world.close()


def test_a_secret_key_s_message_waits_for_no_other_user(world: World) -> None:
    """Otherwise the time that publishing takes would tell whether the key has a subscriber."""
    reader, publisher = guest_of(world, ALICE, SECRET + b"x"), paced(world, BOB)
    fill(world, publisher, SECRET + b"x")
    assert world.switch.connection_counters(reader).lost_packets > 0
    assert world.switch.waits(publisher).blocked_ms == 0
    assert world.switch.counters().blocks == 0


@pytest.mark.parametrize("who", ["the same user", "an owner"])
def test_a_secret_key_s_message_waits_for_who_is_no_secret(world: World, who: str) -> None:
    reader = guest_of(world, ALICE, SECRET + b"x")
    publisher = paced(world, ALICE) if who == "the same user" else paced(world, 0, sight=Sight.ALL)
    fill(world, publisher, SECRET + b"x")
    assert [each.connection for each in world.switch.waits(publisher).blocked_by] == [reader]
    assert world.switch.connection_counters(reader).lost_packets == 0


SIZES = (10, 900, 40, 10, 10, 2_000, 30, 10, 10, 10)
KEYS = (b"a", b"b", b"a/b", b"b", b"b", b"a", b"a")


def test_what_a_stopped_reader_loses_is_counted_in_its_place_whatever_the_sizes() -> None:
    """A packet that fits behind larger ones that do not is kept, behind the notice of those: nothing is skipped but by its own size."""
    world = World(dataclasses.replace(LIMITS, queue_packets=1 << 40, queue_bytes=6_000))
    stopped = world.connect(b"", send_buffer=4096)
    world.switch.set_party(stopped, ALICE)
    healthy, publisher = guest_of(world, ALICE, b""), guest_of(world, BOB)
    total, received, got = 600, 0, 0
    for number in range(total):
        payload = b"%d " % number + bytes(SIZES[number % len(SIZES)])
        assert world.send(publisher, b"MSG %b\0%b" % (KEYS[number % len(KEYS)], payload))
        if number % 50 == 49:
            world.run()
            received += len(world.receive(healthy))
    world.run()
    received += len(world.drain(healthy))
    assert received == total, "the healthy one has it all"
    expected = 0
    for packet in world.drain(stopped):
        if packet.startswith(b"CMSG !/bus/lost\0"):
            expected += int(packet.partition(b"\0")[2])
        else:
            assert int(packet.partition(b"\0")[2].split(b" ")[0]) == expected, "a loss was reported in another place"
            expected += 1
            got += 1
    assert expected == total
    assert 0 < got < total
    world.check_balance()
    world.close()


# What the answers say


@pytest.fixture
def parlour(make_parlour: MakeParlour) -> Parlour:
    return make_parlour(DaemonSettings(limits=LIMITS))


def block(parlour: Parlour) -> tuple[Guest, Guest]:
    """Return a paced publisher of Bob's, and a reader of Alice's that it waits for."""
    reader, publisher = parlour.guest(uid=ALICE, pid=1), parlour.guest(uid=BOB, pid=2)
    reader.subscribe(b"a")
    publisher.control(b"pace/on")
    parlour.run()
    publisher.socket.setblocking(False)
    try:
        for _ in range(40):
            publisher.socket.send(b"MSG a\0" + BIG)
            parlour.run()
    except BlockingIOError:
        return reader, publisher
    raise AssertionError("the publisher was never blocked")


def only(answer: dict[str, object], name: str) -> dict[str, object]:
    """Return the one object of a list."""
    found = answer[name]
    assert isinstance(found, list)
    (entry,) = found
    assert isinstance(entry, dict)
    return entry


def connection_of(asker: Guest, number: int) -> dict[str, object]:
    found = asker.ask_json(controls.CONNECTIONS)["connections"]
    assert isinstance(found, list)
    (entry,) = [each for each in found if each["id"] == number]
    assert isinstance(entry, dict)
    return entry


def without_time(waits: object) -> list[tuple[object, ...]]:
    assert isinstance(waits, list)
    assert all(isinstance(each["ms"], int) and each["ms"] >= 0 for each in waits)
    return [(each["id"], each["uid"], each["paced"]) for each in waits]


def test_users_see_that_their_own_wait_and_not_for_which_connection_of_others(parlour: Parlour) -> None:
    reader, publisher = block(parlour)
    alice, bob, owner = parlour.guest(uid=ALICE), parlour.guest(uid=BOB), parlour.guest()
    entry = connection_of(bob, publisher.connection)
    assert (entry["pace"], entry["blocked_by_count"], entry["blocks_count"]) == (True, 1, 0)
    assert without_time(entry["blocked_by"]) == [(None, None, True)]
    entry = connection_of(alice, reader.connection)
    assert without_time(entry["blocks"]) == [(None, None, True)]
    assert without_time(connection_of(owner, publisher.connection)["blocked_by"]) == [(reader.connection, ALICE, True)]
    assert without_time(connection_of(owner, reader.connection)["blocks"]) == [(publisher.connection, BOB, True)]


def test_stats_name_waits_to_owners_alone(parlour: Parlour) -> None:
    reader, publisher = block(parlour)
    wait = only(parlour.guest().ask_json(controls.STATS), "waits")
    ms = wait.pop("ms")
    assert isinstance(ms, int)
    assert wait == {
        "recipient": reader.connection,
        "recipient_uid": ALICE,
        "publisher": publisher.connection,
        "publisher_uid": BOB,
        "paced": True,
    }
    assert "waits" not in parlour.guest(uid=BOB).ask_json(controls.STATS)


def test_users_are_told_their_own_times(parlour: Parlour) -> None:
    block(parlour)
    for uid, waits in ((ALICE, False), (BOB, True)):
        guest = parlour.guest(uid=uid)
        own, other = ("blocked_ms", "blocked_others_ms") if waits else ("blocked_others_ms", "blocked_ms")
        while not (user := only(guest.ask_json(controls.USERS), "users"))[own]:
            continue  # a millisecond passes by itself
        assert (user["uid"], user[other]) == (uid, 0)


@pytest.mark.parametrize(("uid", "mode", "told"), [(BOB, b"block", "discard"), (ALICE, b"block", "block"), (BOB, b"error", "error")])
def test_trace_says_what_a_full_queue_means_for_who_asks(parlour: Parlour, uid: int, mode: bytes, told: str) -> None:
    """An owner asks as a publisher too: a recipient of another user cannot block it, whatever mode that has chosen."""
    reader = parlour.guest(uid=uid)
    reader.subscribe(b"a")
    reader.control(b"blocking/hard/" + mode)
    asker = parlour.guest(uid=ALICE if uid == ALICE else 0)
    recipient = only(asker.ask_json(controls.TRACE, b"a"), "recipients")
    assert recipient["when_full"] == told


@pytest.mark.parametrize(
    ("question", "name", "value"),
    [
        (b"publish\0a", "waits_for_others", True),
        (b"publish\0" + SECRET + b"x", "waits_for_others", False),
        (b"subscribe\0a", "blocks_others", False),
    ],
)
def test_explain_says_who_can_wait_and_who_can_block(parlour: Parlour, question: bytes, name: str, value: bool) -> None:
    answer = parlour.guest(uid=ALICE).ask_json(controls.EXPLAIN, b"%d\0%b" % (ALICE, question))
    assert answer[name] is value
