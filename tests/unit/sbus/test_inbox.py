"""Bounds, policies, the place of gaps, and dispatch to several subscriptions of one connection."""

from __future__ import annotations

import pytest

from sbus.inbox import _CACHED_KEYS, Bounds, Inbox, Overflow, Routes
from sbus.incoming import MessageRun, measure_run
from sbus.items import Gap, Item, Message, Reconnected, Replaced
from sbus.protocol.keys import KeySpace
from sbus.protocol.memberships import stored_pattern
from sbus.protocol.packets import BATCH_HEAD, join_batch


def make(packets: int = 3, size: int = 1000, overflow: Overflow = Overflow.DISCARD, stalled: set[Inbox] | None = None) -> Inbox:
    return Inbox([b""], Bounds(packets, size, overflow), set() if stalled is None else stalled)


def message(number: int, payload: bytes = b"") -> Message:
    return Message(b"%d" % number, payload)


def drain(inbox: Inbox) -> list[Item]:
    return list(iter(inbox.take, None))


def test_items_come_in_order() -> None:
    inbox = make()
    for number in range(3):
        inbox.put(message(number))
    assert drain(inbox) == [message(0), message(1), message(2)]
    assert inbox.delivered == 3


def test_discard_drops_the_newest_and_marks_the_place() -> None:
    inbox = make()
    for number in range(5):
        inbox.put(message(number))
    assert inbox.take() == message(0)
    inbox.put(message(5))
    assert len(inbox) == 4
    assert drain(inbox) == [message(1), message(2), Gap(2), message(5)]
    assert (inbox.delivered, inbox.discarded) == (4, 2)


def test_a_gap_without_a_following_message_is_reported() -> None:
    inbox = make(packets=1)
    inbox.put(message(0))
    inbox.put(message(1))
    assert drain(inbox) == [message(0), Gap(1)]
    assert drain(inbox) == []


def test_discard_by_bytes_admits_one_packet_past_the_bound() -> None:
    inbox = make(packets=100, size=10)
    inbox.put(message(0, b"x" * 500))
    inbox.put(message(1))
    assert drain(inbox) == [message(0, b"x" * 500), Gap(1)]
    inbox.put(message(2))
    assert drain(inbox) == [message(2)]


def test_bytes_are_given_back() -> None:
    inbox = make(packets=1000, size=20)
    for number in range(50):
        inbox.put(message(number % 10, b"123456789"))
        if number:
            assert inbox.take() == message((number - 1) % 10, b"123456789")
    assert inbox.discarded == 0


@pytest.mark.parametrize("bounds", [{"packets": 2}, {"packets": 100, "size": 2}])
def test_block_stalls_until_there_is_room_and_loses_nothing(bounds: dict[str, int]) -> None:
    stalled: set[Inbox] = set()
    inbox = make(overflow=Overflow.BLOCK, stalled=stalled, **bounds)
    inbox.put(message(0))
    assert not stalled
    inbox.put(message(1))
    assert stalled == {inbox}
    inbox.put(message(2))
    assert inbox.take() == message(0)
    assert stalled
    assert inbox.take() == message(1)
    assert not stalled
    assert drain(inbox) == [message(2)]


def test_a_retired_inbox_blocks_no_other_one() -> None:
    stalled: set[Inbox] = set()
    inbox = make(packets=1, overflow=Overflow.BLOCK, stalled=stalled)
    inbox.put(message(0))
    inbox.retire()
    assert not stalled
    assert inbox.take() is None


def test_remote_gaps_are_added_up_and_stay_in_place() -> None:
    inbox = make()
    inbox.put(message(0))
    inbox.put_gap(2)
    inbox.put_gap(3)
    inbox.put(message(1))
    assert drain(inbox) == [message(0), Gap(5), message(1)]


def test_a_gap_of_unknown_size_stays_unknown_whatever_is_added() -> None:
    inbox = make()
    inbox.put_gap(2)
    inbox.put_gap(0)
    inbox.put_gap(3)
    assert len(inbox) == 1
    inbox.put(message(0))
    inbox.put_gap(0)
    assert drain(inbox) == [Gap(0), message(0), Gap(0)]


def test_reconnections_do_not_grow_the_queue() -> None:
    inbox = make()
    inbox.put(message(0))
    inbox.put_gap(1)
    for _ in range(100):
        inbox.put_reconnected(Reconnected(2, 0.5))
        inbox.put_gap(1)
    assert drain(inbox) == [message(0), Gap(1), Reconnected(200, 50.0), Gap(100)]


@pytest.mark.parametrize(("packets", "size"), [(0, 1), (1, 0), (-1, 5)])
def test_bounds_that_hold_nothing_are_refused(packets: int, size: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        Bounds(packets, size)


def run_of(*payloads: bytes) -> MessageRun:
    batch = join_batch([b"MSG a\0" + payload for payload in payloads])
    return MessageRun(batch, len(BATCH_HEAD), *measure_run(batch, len(BATCH_HEAD)))


def test_messages_of_a_batch_wait_as_one_and_count_as_many() -> None:
    inbox = make(packets=10)
    inbox.put(message(0))
    inbox.put_run(run_of(b"1", b"2", b"3"))
    inbox.put_gap(1)
    inbox.put(message(4))
    assert len(inbox.items) == 4
    assert len(inbox) == 6
    assert inbox.delivered == 5
    assert inbox.take_many(3) == [message(0), Message(b"a", b"1"), Message(b"a", b"2")]
    assert len(inbox) == 3
    assert not inbox.is_empty
    assert inbox.take_many(100) == [Message(b"a", b"3"), Gap(1), message(4)]
    assert inbox.take_many(100) == []
    assert inbox.is_empty


def test_a_batch_that_crosses_a_bound_is_cut_there() -> None:
    inbox = make(packets=3)
    inbox.put(message(0))
    inbox.put_run(run_of(b"1", b"2", b"3", b"4"))
    assert drain(inbox) == [message(0), Message(b"a", b"1"), Message(b"a", b"2"), Gap(2)]
    assert inbox.discarded == 2
    small = make(packets=100, size=7)
    small.put_run(run_of(b"12", b"34", b"56", b"78"))
    assert drain(small) == [Message(b"a", b"12"), Message(b"a", b"34"), Message(b"a", b"56"), Gap(1)]


@pytest.mark.parametrize("bounds", [{"packets": 4}, {"packets": 100, "size": 8}])
def test_room_is_given_back_when_a_batch_is_begun(bounds: dict[str, int]) -> None:
    stalled: set[Inbox] = set()
    inbox = make(overflow=Overflow.BLOCK, stalled=stalled, **bounds)
    inbox.put_run(run_of(b"1", b"2"))
    inbox.put_run(run_of(b"3", b"4", b"5"))
    assert stalled == {inbox}
    assert inbox.take() == Message(b"a", b"1")
    assert not stalled
    assert drain(inbox) == [Message(b"a", payload) for payload in (b"2", b"3", b"4", b"5")]
    for _ in range(100):
        inbox.put_run(run_of(b"1", b"2"))
        assert drain(inbox) == [Message(b"a", b"1"), Message(b"a", b"2")]
    assert not stalled


def test_a_retired_inbox_forgets_the_batch_that_was_begun() -> None:
    inbox = make()
    inbox.put_run(run_of(b"1", b"2"))
    inbox.take()
    inbox.retire()
    assert inbox.take() is None
    assert len(inbox) == 0


def test_replacements_stand_in_their_place_and_are_added_up() -> None:
    inbox = make(packets=10)
    inbox.put(message(0))
    inbox.put_replaced(2)
    inbox.put_replaced(3)
    inbox.put_gap(1)
    inbox.put_replaced(4)
    inbox.put(message(1))
    assert drain(inbox) == [message(0), Replaced(5), Gap(1), Replaced(4), message(1)]


def inbox(*patterns: bytes) -> Inbox:
    return Inbox(list(patterns), Bounds(), set())


def test_each_matching_inbox_gets_the_message_once() -> None:
    routes = Routes(KeySpace())
    one, two, three = inbox(b"a/", b"a/*"), inbox(b"*/b"), inbox(b"c")
    for each in (one, two, three):
        routes.add(each)
    assert routes.find(b"a/b") == (one, two)
    assert routes.find(b"a/b") == (one, two)
    assert routes.find(b"x") == ()
    assert routes.only is None


def test_changes_are_seen_at_once() -> None:
    routes = Routes(KeySpace())
    one, two = inbox(b"a"), inbox(b"a")
    routes.add(one)
    assert routes.only is one
    assert routes.find(b"a") == (one,)
    routes.add(two)
    assert routes.find(b"a") == (one, two)
    assert routes.remove_pattern(b"a") is two
    assert routes.find(b"a") == (one,)
    assert routes.holds(b"a")
    assert routes.discard(one)
    assert not routes.discard(one)
    assert not routes.holds(b"a")
    assert routes.find(b"a") == ()


def test_the_separator_is_the_buss() -> None:
    routes = Routes(KeySpace(b"."))
    one = inbox(b"a.*")
    routes.add(one)
    assert routes.find(b"a.b") == (one,)
    assert routes.find(b"a/b") == ()


def test_no_flood_of_keys_grows_the_cache() -> None:
    routes = Routes(KeySpace())
    routes.add(inbox(b""))
    for number in range(_CACHED_KEYS + 10):
        routes.find(b"%d" % number)
    assert len(routes._cache) <= _CACHED_KEYS


def member(*patterns: bytes, packets: int = 10, stalled: set[Inbox] | None = None) -> Inbox:
    return Inbox([stored_pattern(each, b"g") for each in patterns], Bounds(packets), set() if stalled is None else stalled)


def put_for_group(routes: Routes, key: bytes) -> Inbox:
    """Route a message that the connection got as a member, and return the inbox that has it."""
    (chosen,) = routes.find_member(key, b"g")
    chosen.put(Message(key, b""))
    return chosen


def test_members_on_one_connection_share_messages() -> None:
    routes = Routes(KeySpace())
    one, two, three = member(b"a/"), member(b"a/", b"b"), member(b"b")
    for each in (one, two, three, inbox(b"a/"), Inbox([stored_pattern(b"a/", b"other")], Bounds(), set())):
        routes.add(each)
    assert [put_for_group(routes, b"a/b") for _ in range(4)] == [one, two, one, two]
    assert put_for_group(routes, b"b") is three
    assert routes.find_member(b"c", b"g") == ()
    one.take_many(2)
    assert [put_for_group(routes, b"a/b") for _ in range(3)] == [one, one, two]
    for each in (one, two):
        each.clear()
    assert [put_for_group(routes, b"a/b") for _ in range(2)] == [one, two]
    one.clear()
    two.clear()
    one.is_draining = True
    assert [put_for_group(routes, b"a/b") for _ in range(2)] == [two, two]
    routes.discard(two)
    assert put_for_group(routes, b"a/b") is one


def test_a_full_member_gets_a_message_only_if_all_are_full() -> None:
    routes, stalled = Routes(KeySpace()), set[Inbox]()
    small, large = member(b"a", packets=1, stalled=stalled), member(b"a", packets=3, stalled=stalled)
    routes.add(small)
    routes.add(large)
    assert [put_for_group(routes, b"a") for _ in range(4)] == [small, large, large, large]
    assert put_for_group(routes, b"a") is small
    assert stalled == {small, large}


def test_what_waits_for_a_member_that_has_ended_goes_to_the_others() -> None:
    routes = Routes(KeySpace())
    one, two, other = member(b"a", b"b"), member(b"a"), inbox(b"a")
    for each in (one, two, other):
        routes.add(each)
    for number in range(3):
        one.put(Message(b"a", b"%d" % number))
    one.put(Message(b"b", b""))
    one.put_gap(1)
    routes.discard(one)
    assert routes.hand_over(one) == 3
    assert drain(two) == [Message(b"a", b"%d" % number) for number in range(3)]
    assert (drain(one), drain(other)) == ([], [])
    other.put(Message(b"a", b""))
    routes.discard(other)
    assert routes.hand_over(other) == 0
