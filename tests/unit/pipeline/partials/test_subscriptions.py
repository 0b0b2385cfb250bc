"""Subscriptions between two positions, and the patterns that match a key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbusd.archive.record.key_text import key_bytes, key_text
from sbusd.pipeline.partials.subscriptions import (
    MAX_ROUTES,
    OPEN,
    PatternSet,
    Route,
    RouteTable,
    Subscription,
    SubscriptionEvent,
    subscriptions,
)
from sbusd.protocol.keys import KeySpace


def event(seq: int, kind: str, key: str | None = "a/", conn: int | None = 1, uid: int = 1000) -> SubscriptionEvent:
    return SubscriptionEvent(seq, kind, conn, key, uid, "app.service")


def by_hour(*events: SubscriptionEvent, ends: dict[int | None, int] | None = None) -> list[tuple[int, str, int, int]]:
    return sorted((each.conn, each.pattern, each.since, each.until) for each in subscriptions(events, ends or {}))


def of(table: RouteTable, key: str) -> list[Route]:
    """Return the routes of *key*."""
    return table.of_patterns(table.patterns(key))


def test_a_subscription_lasts_until_it_is_removed() -> None:
    assert by_hour(event(1, "subscribe"), event(5, "unsubscribe")) == [(1, "a/", 1, 5)]
    assert by_hour(event(1, "standing"), event(2, "unsubscribe", "b/")) == [(1, "a/", 1, OPEN)]


def test_the_end_of_a_connection_ends_its_own() -> None:
    events = (event(1, "subscribe"), event(2, "subscribe", "b/"), event(3, "subscribe", conn=2), event(4, "disconnect", None))
    assert by_hour(*events) == [(1, "a/", 1, 4), (1, "b/", 2, 4), (2, "a/", 3, OPEN)]


def test_a_restart_ends_all_subscriptions_and_repeated_ones_begin_again() -> None:
    assert by_hour(event(1, "subscribe"), event(2, "restart", None, None), event(3, "standing")) == [(1, "a/", 1, 2), (1, "a/", 3, OPEN)]


def test_a_repeated_subscription_record_counts_once() -> None:
    assert by_hour(event(1, "subscribe"), event(2, "standing"), event(3, "unsubscribe"), event(4, "unsubscribe")) == [(1, "a/", 1, 3)]


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


_SEGMENTS = st.sampled_from([b"", b"a", b"ab", b"a*", b"*", b"**", b"a*b", b"!", b"cred", b"conn", b"7", b"\xff", b"\\", "é".encode()])
_KEYS = st.lists(_SEGMENTS, max_size=7).map(b"/".join).map(key_text)


@given(st.lists(_KEYS, max_size=12), _KEYS)
def test_it_matches_the_reference(patterns: list[str], key: str) -> None:
    taking = [pattern for pattern in set(patterns) if KeySpace().matches(key_bytes(pattern), key_bytes(key))]
    assert sorted(PatternSet(set(patterns)).matching(key)) == sorted(taking)


def test_a_text_that_is_not_a_key_matches_nothing() -> None:
    assert PatternSet(["", "\\"]).matching("\\") == []
    assert PatternSet(["", "\\"]).matching("a") == [""]


def test_a_deep_key_does_not_recurse_deeply() -> None:
    deep = "*/" * 50_000
    assert PatternSet([deep]).matching("a/" * 50_001) == [deep]
