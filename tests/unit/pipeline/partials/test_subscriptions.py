"""Subscriptions between two positions, and the routes of keys that follow."""

from __future__ import annotations

import pytest

from sbusd.pipeline.partials.subscriptions import (
    MAX_BRANCHES,
    MAX_ROUTES,
    OPEN,
    Route,
    RouteTable,
    Subscription,
    SubscriptionEvent,
    searchable,
    subscriptions,
)
from sbusd.protocol.pattern_index import PatternIndex
from tests.support.patterns import branches


def event(seq: int, kind: str, key: str | None = "a/", conn: int | None = 1, uid: int = 1000) -> SubscriptionEvent:
    return SubscriptionEvent(seq, kind, conn, key, uid, "app.service")


def by_hour(*events: SubscriptionEvent, ends: dict[int | None, int] | None = None) -> list[tuple[int, str, int, int]]:
    return sorted((each.conn, each.pattern, each.since, each.until) for each in subscriptions(events, ends or {}))


def of(table: RouteTable, key: str) -> list[Route]:
    """Return the routes of *key*."""
    return table.of_patterns(table.patterns(key))


def test_a_subscription_lasts_until_it_is_removed() -> None:
    assert by_hour(event(1, "subscribe"), event(5, "unsubscribe")) == [(1, "a/", 1, 5)]
    assert by_hour(event(1, "snapshot"), event(2, "unsubscribe", "b/")) == [(1, "a/", 1, OPEN)]


def test_the_end_of_a_connection_ends_its_own() -> None:
    events = (event(1, "subscribe"), event(2, "subscribe", "b/"), event(3, "subscribe", conn=2), event(4, "disconnect", None))
    assert by_hour(*events) == [(1, "a/", 1, 4), (1, "b/", 2, 4), (2, "a/", 3, OPEN)]


def test_a_restart_ends_all_subscriptions_and_repeated_ones_begin_again() -> None:
    assert by_hour(event(1, "subscribe"), event(2, "restart", None, None), event(3, "snapshot")) == [(1, "a/", 1, 2), (1, "a/", 3, OPEN)]


def test_a_repeated_subscription_record_counts_once() -> None:
    assert by_hour(event(1, "subscribe"), event(2, "snapshot"), event(3, "unsubscribe"), event(4, "unsubscribe")) == [(1, "a/", 1, 3)]


def test_incomplete_rows_are_ignored() -> None:
    assert by_hour(event(1, "subscribe", None), event(2, "subscribe", conn=None), event(3, "disconnect", None, 9)) == []


def test_nothing_is_known_of_a_user_behind_their_last_act() -> None:
    events = (event(1, "subscribe"), event(2, "subscribe", conn=2, uid=1001))
    assert by_hour(*events, ends={1000: 7}) == [(1, "a/", 1, 7), (2, "a/", 2, OPEN)]


def test_a_connection_gets_a_message_once() -> None:
    some = [
        Subscription("a/", 1, 1000, "x", 1, 10),
        Subscription("a/*", 1, 1000, "x", 5, 20),
        Subscription("", 1, 1000, "x", 30, OPEN),
        Subscription("a/b", 2, 1001, None, 2, 3),
        Subscription("z", 3, 1002, None, 1, OPEN),
    ]
    assert of(RouteTable(some), "a/b") == [Route(1, 1000, "x", 1, 20), Route(2, 1001, None, 2, 3), Route(1, 1000, "x", 30, OPEN)]
    assert of(RouteTable([]), "a/b") == []


def test_a_user_who_subscribes_in_a_loop_uses_no_names_of_others() -> None:
    loop = [Subscription("a/", 1, 66, None, 10 * number, 10 * number + 5) for number in range(1_000)]
    found = of(RouteTable([*loop, Subscription("a/", 2, 1000, None, 9_000, OPEN)]), "a/b")
    assert [route.since for route in found if route.uid == 66] == [10 * number for number in range(MAX_ROUTES)]
    assert [route for route in found if route.uid == 1000] == [Route(2, 1000, None, 9_000, OPEN)]


def test_a_user_with_patterns_that_slow_the_search_uses_no_names_of_others() -> None:
    slow = [
        Subscription(f"{'a' * first}*/{'a' * second}*", 1, 66, None, first * 100 + second, OPEN)
        for first in range(100)
        for second in range(100)
    ]
    same = Subscription("aaa*/aaa*", 2, 1000, None, 1, OPEN)
    table = RouteTable([*slow, same])
    key = "a" * 100 + "/" + "a" * 100
    assert len(table.patterns(key)) <= MAX_BRANCHES
    assert of(table, key) == [Route(1, 66, None, 0, OPEN), Route(2, 1000, None, 1, OPEN)]


def test_a_text_that_is_not_a_key_matches_nothing() -> None:
    table = RouteTable(Subscription(text, 1, 1000, None, 1, OPEN) for text in ("", "\\"))
    assert (table.patterns("\\"), table.patterns("a")) == ((), (b"",))


def test_patterns_and_keys_that_are_not_text_are_bytes() -> None:
    table = RouteTable([Subscription("\\xff\\\\*", 1, 1000, None, 1, OPEN)])
    assert table.patterns("\\xff\\\\x") == (b"\xff\\*",)


def test_patterns_that_multiply_are_bounded() -> None:
    key = b"a" * 100 + b"/" + b"a" * 100
    slow = [b"%b*/%b*" % (b"a" * first, b"a" * second) for first in range(100) for second in range(100)]
    assert branches(PatternIndex(slow), key) == 10_000
    used = searchable([*slow, b"a/b", b"a/"])
    assert MAX_BRANCHES // 2 <= len(used) - 2 == branches(PatternIndex(used), key) <= MAX_BRANCHES
    assert {b"a/b", b"a/", *slow[:128]} <= used


@pytest.mark.parametrize(
    "patterns",
    [
        [b"host/*/load/%d" % number for number in range(5_000)] + [b"*/%d/*/x" % number for number in range(5_000)],
        [b"%05d*" % number for number in range(10_000)],
        [b"*/" * 2_000, b"a/" * 2_000, *(b"host/*/load%d" % number for number in range(100))],
        [b"a" * length + b"*" for length in range(256)],
        [b"a/" * 50_000, b"a*"],
    ],
)
def test_ordinary_patterns_are_all_used(patterns: list[bytes]) -> None:
    assert searchable(patterns) == set(patterns)


def test_long_patterns_are_measured_once() -> None:
    """With all the beginnings of each, this would take a minute."""
    long = [b"%04d%b*" % (number, b"a" * 4_000) for number in range(3_000)] + [b"a" * length + b"*" for length in range(1, 3_000)]
    assert len(searchable(long)) >= MAX_BRANCHES // 2
