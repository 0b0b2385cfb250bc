"""Sums by Arrow are those that one would make by hand."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sbusd.report.sums import aggregate_entries, replace_columns

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
