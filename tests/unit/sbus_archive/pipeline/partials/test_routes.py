"""The routes of keys as Arrow arrays, compared with the routes of each message."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.pattern_index import PatternIndex
from sbus_archive.pipeline.partials import routes as module
from sbus_archive.pipeline.partials.routes import (
    MAX_BRANCHES,
    MAX_ROUTES,
    OPEN,
    KeyRoutes,
    Route,
    RouteTable,
    Subscription,
    SubscriptionEvent,
    searchable,
    subscriptions,
)
from sbus_archive.pipeline.partials.rows import encoded_array, numbers, with_columns
from tests.support.patterns import branches

_KEYS = ("a/b", "a/c", "d", None)
_MESSAGES = st.lists(st.tuples(st.sampled_from(_KEYS), st.integers(0, 30), st.sampled_from([None, 1, 2])), min_size=1, max_size=30)
_SUBSCRIPTIONS = st.lists(
    st.tuples(st.sampled_from(["a/", "a/*", "d", "*"]), st.integers(1, 3), st.integers(0, 30), st.sampled_from([3, 9, OPEN])), max_size=12
)


def messages(rows: Sequence[tuple[str | None, int, int | None]]) -> pa.Table:
    """Return *rows* of key, position and the only recipient."""
    keys, seqs, only = zip(*rows, strict=True)
    text = pa.array(keys, pa.string()).dictionary_encode()
    return pa.table({"key": text, "seq": pa.array(seqs, pa.int64()), "to_conn": pa.array(only, pa.int64())})


def table_of(subscriptions: list[tuple[str, int, int, int]]) -> RouteTable:
    """Return a table of *subscriptions*: pattern, connection, begin and duration."""
    return RouteTable(
        [Subscription(key, conn, 1000 + conn, None, since, min(OPEN, since + time)) for key, conn, since, time in subscriptions]
    )


def routes_of(table: RouteTable, rows: pa.Table) -> KeyRoutes:
    """Return the routes of the keys of *rows*."""
    return KeyRoutes(table, encoded_array(rows.column("key")).dictionary.to_pylist())


def active(table: RouteTable, key: str | None, seq: int) -> list[int]:
    """Return the connections whose routes are active at a position."""
    return (
        sorted(route.conn for route in table.of_patterns(table.patterns(key)) if route.since <= seq <= route.until)
        if key is not None
        else []
    )


@given(_MESSAGES, _SUBSCRIPTIONS)
def test_candidates_are_the_active_connections_of_each_message(
    rows: list[tuple[str | None, int, int | None]], subscriptions: list[tuple[str, int, int, int]]
) -> None:
    table, sent = table_of(subscriptions), messages(rows)
    found: dict[int, list[int]] = {number: [] for number in range(len(rows))}
    for row in routes_of(table, sent).candidates(with_columns(sent, {"group": numbers(sent)})).to_pylist():
        found[row["group"]].append(row["conn"])
        assert row["to_uid"] == 1000 + row["conn"]
    for number, (key, seq, only) in enumerate(rows):
        assert sorted(found[number]) == [conn for conn in active(table, key, seq) if only in (None, conn)]


@given(_MESSAGES, _SUBSCRIPTIONS)
def test_messages_of_one_span_have_the_same_routes(
    rows: list[tuple[str | None, int, int | None]], subscriptions: list[tuple[str, int, int, int]]
) -> None:
    """Unless a message has the position of a change, which no record has."""
    table = table_of(subscriptions)
    changes = {bound for _, _, since, time in subscriptions for bound in (since, since + time)}
    if not (placed := [row for row in rows if row[1] not in changes]):
        return
    sent = messages(placed)
    spans = routes_of(table, sent).spans(sent).to_pylist()
    known: dict[tuple[str | None, int], list[int]] = {}
    for (key, seq, _), span in zip(placed, spans, strict=True):
        assert known.setdefault((key, span), active(table, key, seq)) == active(table, key, seq)


@given(_MESSAGES, _SUBSCRIPTIONS, st.integers(0, 3))
def test_keys_with_many_routes_are_handled_in_parts(
    rows: list[tuple[str | None, int, int | None]], subscriptions: list[tuple[str, int, int, int]], most: int
) -> None:
    table, sent = table_of(subscriptions), messages(rows)
    whole = routes_of(table, sent).candidates(with_columns(sent, {"group": sent.column("seq")})).to_pylist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_ROUTES_AT_ONCE", most)
        parts = list(KeyRoutes.of_messages(table, sent))
    assert sorted((row for _, part in parts for row in part.to_pylist()), key=str) == sorted(sent.to_pylist(), key=str)
    found = [row for routes, part in parts for row in routes.candidates(with_columns(part, {"group": part.column("seq")})).to_pylist()]
    assert sorted(found, key=str) == sorted(whole, key=str)


def test_spans_are_few() -> None:
    """A message begins a new span only after a change of its key."""
    table = table_of([("a/", 1, 5, OPEN), ("d", 2, 7, 3)])
    sent = messages([("a/b", seq, None) for seq in range(0, 12, 2)] + [("d", 8, None), ("d", 9, None), ("a/c", 2, None)])
    spans = routes_of(table, sent).spans(sent).to_pylist()
    assert len(set(zip(sent.column("key").to_pylist(), spans, strict=True))) == 4


@given(_MESSAGES, _SUBSCRIPTIONS, st.integers(1, 9))
def test_groups_are_divided_by_their_routes(
    rows: list[tuple[str | None, int, int | None]], subscriptions: list[tuple[str, int, int, int]], most: int
) -> None:
    table, sent = table_of(subscriptions), messages(rows)
    parts = list(routes_of(table, sent).divided(sent, most))
    assert pa.concat_tables(parts).to_pylist() == sent.to_pylist()
    for part in parts:
        sizes = [len(table.of_patterns(table.patterns(key))) if key is not None else 0 for key in part.column("key").to_pylist()]
        assert sum(sizes) <= most or len(sizes) == 1


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
