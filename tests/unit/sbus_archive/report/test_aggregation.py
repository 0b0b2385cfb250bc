"""Sums by group, and the names that a chart distinguishes."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sbus_archive.report.aggregation import OTHERS, UNKNOWN, aggregate_entries, most_used, replace_columns

ENTRIES = pa.list_(pa.struct([pa.field("bucket", pa.int64()), pa.field("calls", pa.int64())]))

histograms = st.none() | st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=4)


@given(st.lists(st.tuples(st.none() | st.integers(0, 3), histograms), max_size=12), st.integers(0, 12))
def test_entries_of_lists_add_up_by_group(rows: list[tuple[int | None, list[tuple[int, int]] | None]], cut: int) -> None:
    lists = [None if entries is None else [{"bucket": bucket, "calls": calls} for bucket, calls in entries] for _, entries in rows]
    chunks = [pa.table({"e": pa.array(part, ENTRIES)}) for part in (lists[:cut], lists[cut:])]
    wanted: dict[int, Counter[int]] = {}
    for group, entries in rows:
        for bucket, calls in entries or ():
            if group is not None:
                wanted.setdefault(group, Counter())[bucket] += calls
    found = aggregate_entries([group for group, _ in rows], pa.concat_tables(chunks).column("e"), "bucket", "calls")
    assert found == {group: sorted(counts.items()) for group, counts in wanted.items()}


def test_columns_are_replaced_where_they_stand() -> None:
    table = pa.table({"a": pa.array([1, 2], pa.int64()), "b": pa.array(["x", None], pa.string())})
    found = replace_columns(table, a=table.column("b"))
    assert found.to_pylist() == [{"a": "x", "b": "x"}, {"a": None, "b": None}]


def test_the_heaviest_are_named_and_the_others_are_one() -> None:
    found = most_used([("a", 1), ("b", 5), ("c", 2), ("a", 3), (None, 9)], 2, str.upper)
    assert found.labels == ("B", "A", OTHERS)
    assert [found.number(value) for value in ("b", "a", "c", None, "new")] == [0, 1, 2, 2, 2]


def test_nothing_known_can_be_a_name() -> None:
    found = most_used([(1000, 1), (None, 9)], 5, str, UNKNOWN)
    assert found.labels == (UNKNOWN, "1000", OTHERS)
    assert (found.number(None), found.number(1000), found.number(7)) == (0, 1, 2)


def test_no_values_leave_all_others() -> None:
    assert most_used([], 5, str).labels == (OTHERS,)


def test_a_column_has_the_numbers_of_its_values() -> None:
    words = most_used([("a", 1), ("b", 5)], 2, str.upper)
    users = most_used([(1000, 1), (None, 9)], 5, str, UNKNOWN)
    texts, numbers = (pa.table({"x": pa.array(values)}).column("x") for values in (["b", None, "a", "new", "b"], [7, None, 1000]))
    assert words.numbers(texts).to_pylist() == [words.number(value) for value in texts.to_pylist()] == [0, 2, 1, 2, 0]
    assert users.numbers(numbers).to_pylist() == [users.number(value) for value in numbers.to_pylist()] == [2, 0, 1]
    assert most_used([], 5, str).numbers(texts).to_pylist() == [0] * 5
