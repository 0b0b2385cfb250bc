"""Conditions: what options ask for, and whether a segment is left out is never a guess in the wrong direction."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.archive.record.index import IndexEntry
from sbusd.archive.record.schema import batch_of
from sbusd.pipeline.source.filters import Condition
from tests.support.records import message

NAME = "date=2026-11-20/hour=12/host=alpha/00000000000000000001.parquet"


@given(st.lists(st.integers(0, 9), min_size=1), st.sampled_from((">=", "<")), st.integers(-1, 10))
def test_rows_and_segments_are_chosen_by_time(times: list[int], sign: Literal[">=", "<"], bound: int) -> None:
    condition = Condition("ts", sign, (bound,))
    table = pa.Table.from_batches([batch_of([message(number, ts=time) for number, time in enumerate(times)])])
    expected = [time for time in times if (time >= bound if sign == ">=" else time < bound)]
    assert table.filter(condition.expression()).column("ts").to_pylist() == expected
    assert condition.may_hold(_entry(min(times), max(times))) is bool(expected)


def test_rows_are_chosen_by_kind() -> None:
    rows = [message(1), message(2)._replace(kind="denial"), message(3)._replace(kind="loss")]
    table = pa.Table.from_batches([batch_of(rows)])
    assert table.filter(Condition("kind", "in", ("loss", "message")).expression()).column("seq").to_pylist() == [1, 3]


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (Condition("host", "in", ("alpha", "beta")), True),
        (Condition("host", "in", ("beta",)), False),
        (Condition("kind", "in", ("denial",)), False),
        (Condition("kind", "in", ("denial", "message")), True),
    ],
)
def test_segments_are_chosen_by_their_entry(condition: Condition, holds: bool) -> None:
    assert condition.may_hold(_entry(0, 9)) is holds


def test_a_segment_whose_kinds_are_not_told_is_opened() -> None:
    assert Condition("kind", "in", ("denial",)).may_hold(IndexEntry(NAME, "2026-11-20", 12, "alpha", 10, 1, "", 0, 9, 1, 20))


def _entry(min_ts: int, max_ts: int) -> IndexEntry:
    return IndexEntry(NAME, "2026-11-20", 12, "alpha", 10, 1, "", min_ts, max_ts, 1, 20, {"message": 10})
