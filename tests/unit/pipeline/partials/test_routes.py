"""The routes of keys as Arrow arrays, compared with the routes of each message."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.pipeline.partials import routes as module
from sbusd.pipeline.partials.routes import KeyRoutes
from sbusd.pipeline.partials.rows import encoded_array, numbers, with_columns
from sbusd.pipeline.partials.subscriptions import OPEN, RouteTable, Subscription

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
