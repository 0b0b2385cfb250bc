"""Who blocks whom: what the switch counts, and what the answers to clients say. Spec: sbus-protocol(7) §6 and §7."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from sbus.protocol import controls
from sbus_programs.config.settings import DaemonSettings, LimitSettings
from sbusd.dataplane.contract import Sight
from sbusd.dataplane.counters import NAMED_WAITS
from tests.support.in_process_bus import BusClient, InProcessBus, MakeBus
from tests.support.switch_harness import SwitchHarness

LIMITS = LimitSettings(queue_packets=8, queue_bytes=4 << 20, block_timeout=600.0, progress_timeout=600.0, pace_limit=1.0)
BIG = bytes(150_000)
"""A payload of which a socket takes two or three."""

ALICE, BOB = 1000, 2000

SECRET = b"!/cred//1000//"


@pytest.fixture
def harness() -> Iterator[SwitchHarness]:
    """A switch with small queues and a long block timeout."""
    harness = SwitchHarness(LIMITS)
    yield harness
    harness.check_balance()
    harness.close()


def connect_as(harness: SwitchHarness, uid: int, *patterns: bytes, sight: Sight = Sight.OWN) -> int:
    number = harness.connect(*patterns)
    harness.switch.set_party(number, uid, sight=sight)
    return number


def fill(harness: SwitchHarness, publisher: int, key: bytes = b"a") -> None:
    """Publish until the publisher is not read any more, or the same amount is discarded."""
    for _ in range(40):
        if not harness.send(publisher, b"MSG %b\0%b" % (key, BIG)):
            return
        harness.run()


def pass_time(harness: SwitchHarness) -> None:
    """Let some milliseconds pass, by what the switch itself counts."""
    before = harness.switch.user_waits(BOB).blocked_ms
    while harness.switch.user_waits(BOB).blocked_ms < before + 5:
        harness.switch.turn(1)


def paced(harness: SwitchHarness, uid: int, sight: Sight = Sight.OWN) -> int:
    publisher = connect_as(harness, uid, sight=sight)
    harness.send(publisher, b"CMSG pace/on")
    harness.run()
    return publisher


def test_blocked_publishers_and_blocking_recipients_are_listed_on_both_sides(harness: SwitchHarness) -> None:
    reader, publisher, other = connect_as(harness, ALICE, b"a"), paced(harness, BOB), connect_as(harness, BOB)
    fill(harness, publisher)
    pass_time(harness)
    waits, blocking = harness.switch.waits(publisher), harness.switch.waits(reader)
    assert (waits.is_paced, waits.blocked_by_count, waits.blocks_count) == (True, 1, 0)
    assert [(each.connection, each.is_paced) for each in waits.blocked_by] == [(reader, True)]
    assert [(each.connection, each.is_paced) for each in blocking.blocks] == [(publisher, True)]
    assert (blocking.is_paced, blocking.blocked_by, blocking.blocks_count) == (False, (), 1)
    assert waits.blocked_by[0].ms >= 5
    assert 5 <= waits.blocked_ms <= harness.switch.waits(reader).blocked_others_ms
    assert harness.switch.blockers(10) == [reader]
    assert harness.switch.user_waits(ALICE).blocked_others_ms >= 5
    assert harness.switch.user_waits(ALICE).blocked_ms == harness.switch.user_waits(BOB).blocked_others_ms == 0
    assert harness.switch.waits(other) == (False, 0, 0, 0, 0, (), ())
    harness.drain(reader)
    taken = harness.switch.waits(publisher)
    assert (taken.blocked_by_count, taken.blocked_by, harness.switch.blockers(10)) == (0, (), [])
    assert taken.blocked_ms >= 5
    harness.switch.turn(20)
    assert harness.switch.waits(publisher).blocked_ms == taken.blocked_ms, "the wait is over"
    assert abs(harness.switch.user_waits(BOB).blocked_ms - taken.blocked_ms) <= 1, "each is rounded for itself"


def test_a_wait_for_several_recipients_counts_once_for_the_publisher_and_for_each(harness: SwitchHarness) -> None:
    readers = [connect_as(harness, ALICE, b"a") for _ in range(NAMED_WAITS + 2)]
    publisher = paced(harness, BOB)
    fill(harness, publisher)
    pass_time(harness)
    waits = harness.switch.waits(publisher)
    assert waits.blocked_by_count == len(readers)
    assert len(waits.blocked_by) == NAMED_WAITS
    assert {each.connection for each in waits.blocked_by} <= set(readers)
    blocked = harness.switch.user_waits(BOB).blocked_ms
    held = [harness.switch.waits(reader).blocked_others_ms for reader in readers]
    assert min(held) >= 4, "their waits may begin one after the other"
    assert harness.switch.user_waits(ALICE).blocked_others_ms >= sum(held) - 1, "each is rounded for itself"
    assert blocked <= max(held), "the wait for all of them is counted once"


@pytest.mark.parametrize("who", ["publisher", "reader"])
def test_a_connection_that_ends_while_blocked_or_blocking_leaves_no_wait(harness: SwitchHarness, who: str) -> None:
    reader, publisher = connect_as(harness, ALICE, b"a"), paced(harness, BOB)
    stays = connect_as(harness, BOB)
    fill(harness, publisher)
    pass_time(harness)
    harness.switch.disconnect(publisher if who == "publisher" else reader)
    harness.run()
    if who == "publisher":
        harness.drain(reader)
    assert harness.switch.blockers(10) == []
    before = harness.switch.user_waits(BOB)
    assert before.blocked_ms >= 5
    harness.switch.turn(20)
    assert harness.switch.user_waits(BOB) == before
    assert harness.switch.waits(stays).blocked_ms == 0


def test_a_restart_keeps_blocked_publishers_and_their_times() -> None:
    harness = SwitchHarness(LIMITS)
    reader, publisher = harness.connect(b"a"), harness.connect()
    harness.set_party(reader, ALICE)
    harness.set_party(publisher, BOB)
    harness.send(publisher, b"CMSG pace/on")
    fill(harness, publisher)
    pass_time(harness)
    before = harness.switch.waits(publisher), harness.switch.waits(reader), harness.switch.user_waits(ALICE)
    harness.hand_over()
    waits, blocking = harness.switch.waits(publisher), harness.switch.waits(reader)
    assert [each.connection for each in waits.blocked_by] == [reader]
    assert waits.blocked_ms >= before[0].blocked_ms >= 5
    assert blocking.blocked_others_ms >= before[1].blocked_others_ms >= 5
    assert harness.switch.user_waits(ALICE).blocked_others_ms >= before[2].blocked_others_ms
    assert harness.switch.user_waits(BOB).blocked_ms >= 5
    harness.close()


def test_a_secret_key_s_message_waits_for_no_other_user(harness: SwitchHarness) -> None:
    """Otherwise the time that publishing takes would tell whether the key has a subscriber."""
    reader, publisher = connect_as(harness, ALICE, SECRET + b"x"), paced(harness, BOB)
    fill(harness, publisher, SECRET + b"x")
    assert harness.switch.connection_counters(reader).lost_packets > 0
    assert harness.switch.waits(publisher).blocked_ms == 0
    assert harness.switch.counters().blocks == 0


@pytest.mark.parametrize("who", ["the same user", "an owner"])
def test_a_private_message_blocks_for_recipients_that_the_publisher_may_know(harness: SwitchHarness, who: str) -> None:
    reader = connect_as(harness, ALICE, SECRET + b"x")
    publisher = paced(harness, ALICE) if who == "the same user" else paced(harness, 0, sight=Sight.ALL)
    fill(harness, publisher, SECRET + b"x")
    assert [each.connection for each in harness.switch.waits(publisher).blocked_by] == [reader]
    assert harness.switch.connection_counters(reader).lost_packets == 0


SIZES = (10, 900, 40, 10, 10, 2_000, 30, 10, 10, 10)
KEYS = (b"a", b"b", b"a/b", b"b", b"b", b"a", b"a")


def test_losses_of_a_stopped_reader_are_reported_in_their_place_for_any_sizes() -> None:
    """A packet that fits behind larger ones that do not is kept, behind the notice of those: nothing is skipped but by its own size."""
    harness = SwitchHarness(dataclasses.replace(LIMITS, queue_packets=1 << 40, queue_bytes=6_000))
    stopped = harness.connect(b"", send_buffer=4096)
    harness.switch.set_party(stopped, ALICE)
    healthy, publisher = connect_as(harness, ALICE, b""), connect_as(harness, BOB)
    total, received, got = 600, 0, 0
    for number in range(total):
        payload = b"%d " % number + bytes(SIZES[number % len(SIZES)])
        assert harness.send(publisher, b"MSG %b\0%b" % (KEYS[number % len(KEYS)], payload))
        if number % 50 == 49:
            harness.run()
            received += len(harness.receive(healthy))
    harness.run()
    received += len(harness.drain(healthy))
    assert received == total, "the healthy one has it all"
    expected = 0
    for packet in harness.drain(stopped):
        if packet.startswith(b"CMSG !/bus/lost\0"):
            expected += int(packet.partition(b"\0")[2])
        else:
            assert int(packet.partition(b"\0")[2].split(b" ")[0]) == expected, "a loss was reported in another place"
            expected += 1
            got += 1
    assert expected == total
    assert 0 < got < total
    harness.check_balance()
    harness.close()


# What the answers say


@pytest.fixture
def bus(make_bus: MakeBus) -> InProcessBus:
    return make_bus(DaemonSettings(limits=LIMITS))


def block(bus: InProcessBus) -> tuple[BusClient, BusClient]:
    """Return a paced publisher of Bob's, and a reader of Alice's that it waits for."""
    reader, publisher = bus.client(uid=ALICE, pid=1), bus.client(uid=BOB, pid=2)
    reader.subscribe(b"a")
    publisher.control(b"pace/on")
    bus.run()
    publisher.socket.setblocking(False)
    try:
        for _ in range(40):
            publisher.socket.send(b"MSG a\0" + BIG)
            bus.run()
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


def connection_of(asker: BusClient, number: int) -> dict[str, object]:
    found = asker.ask_json(controls.CONNECTIONS)["connections"]
    assert isinstance(found, list)
    (entry,) = [each for each in found if each["id"] == number]
    assert isinstance(entry, dict)
    return entry


def without_time(waits: object) -> list[tuple[object, ...]]:
    assert isinstance(waits, list)
    assert all(isinstance(each["ms"], int) and each["ms"] >= 0 for each in waits)
    return [(each["id"], each["uid"], each["paced"]) for each in waits]


def test_users_see_that_their_own_wait_and_not_for_which_connection_of_others(bus: InProcessBus) -> None:
    reader, publisher = block(bus)
    alice, bob, owner = bus.client(uid=ALICE), bus.client(uid=BOB), bus.client()
    entry = connection_of(bob, publisher.connection)
    assert (entry["pace"], entry["blocked_by_count"], entry["blocks_count"]) == (True, 1, 0)
    assert without_time(entry["blocked_by"]) == [(None, None, True)]
    entry = connection_of(alice, reader.connection)
    assert without_time(entry["blocks"]) == [(None, None, True)]
    assert without_time(connection_of(owner, publisher.connection)["blocked_by"]) == [(reader.connection, ALICE, True)]
    assert without_time(connection_of(owner, reader.connection)["blocks"]) == [(publisher.connection, BOB, True)]


def test_stats_name_waits_to_owners_alone(bus: InProcessBus) -> None:
    reader, publisher = block(bus)
    wait = only(bus.client().ask_json(controls.STATS), "waits")
    ms = wait.pop("ms")
    assert isinstance(ms, int)
    assert wait == {
        "recipient": reader.connection,
        "recipient_uid": ALICE,
        "publisher": publisher.connection,
        "publisher_uid": BOB,
        "paced": True,
    }
    assert "waits" not in bus.client(uid=BOB).ask_json(controls.STATS)


def test_users_see_only_their_own_times(bus: InProcessBus) -> None:
    block(bus)
    for uid, waits in ((ALICE, False), (BOB, True)):
        client = bus.client(uid=uid)
        own, other = ("blocked_ms", "blocked_others_ms") if waits else ("blocked_others_ms", "blocked_ms")
        while not (user := only(client.ask_json(controls.USERS), "users"))[own]:
            continue  # a millisecond passes by itself
        assert (user["uid"], user[other]) == (uid, 0)


@pytest.mark.parametrize(("uid", "mode", "expected"), [(BOB, b"block", "discard"), (ALICE, b"block", "block"), (BOB, b"error", "error")])
def test_trace_reports_the_effect_of_a_full_queue_on_the_caller(bus: InProcessBus, uid: int, mode: bytes, expected: str) -> None:
    """An owner asks as a publisher too: a recipient of another user cannot block it, whatever mode that has chosen."""
    reader = bus.client(uid=uid)
    reader.subscribe(b"a")
    reader.control(b"blocking/hard/" + mode)
    reader.barrier()
    asker = bus.client(uid=ALICE if uid == ALICE else 0)
    recipient = only(asker.ask_json(controls.TRACE, b"a"), "recipients")
    assert recipient["when_full"] == expected


@pytest.mark.parametrize(
    ("question", "name", "value"),
    [
        (b"publish\0a", "waits_for_others", True),
        (b"publish\0" + SECRET + b"x", "waits_for_others", False),
        (b"subscribe\0a", "blocks_others", False),
    ],
)
def test_explain_reports_who_can_be_blocked_and_who_can_block(bus: InProcessBus, question: bytes, name: str, value: bool) -> None:
    answer = bus.client(uid=ALICE).ask_json(controls.EXPLAIN, b"%d\0%b" % (ALICE, question))
    assert answer[name] is value
