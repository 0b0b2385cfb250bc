"""Filters: what is taken means what SQL says, and whether a segment is left out is never a guess in the wrong direction."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from sbusd.pipeline.source.filters import Condition, condition_of
from sbusd.record.index import IndexEntry
from sbusd.record.schema import batch_of
from tests.support.records import message

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.mark.parametrize(
    "given",
    [
        spark.EqualTo(("payload",), b"x"),
        spark.EqualTo(("nothing",), 1),
        spark.EqualTo(("uid", "x"), 1),
        spark.EqualTo(("uid",), None),
        spark.EqualTo(("uid",), 1.5),
        spark.EqualTo(("uid",), True),
        spark.EqualTo(("key",), 7),
        spark.In(("uid",), (None,)),
        spark.StringContains(("key",), "x"),
        spark.Not(spark.EqualTo(("key",), "x")),
        spark.EqualNullSafe(("uid",), 1),
    ],
)
def test_what_is_not_understood_stays_with_spark(given: spark.Filter) -> None:
    assert condition_of(given) is None


def test_what_is_understood_is_taken() -> None:
    assert condition_of(spark.In(("uid",), (1, None))) == Condition("uid", "in", (1,))
    assert condition_of(spark.IsNotNull(("host",))) == Condition("host", "not null")
    assert condition_of(spark.StringStartsWith(("key",), "a/")) == Condition("key", "starts", ("a/",))
    assert condition_of(spark.LessThanOrEqual(("call_exp",), 5)) == Condition("call_exp", "<=", (5,))


_TEXT = st.text("aé/\U0001f600\ue000", max_size=3)


@given(st.lists(st.none() | _TEXT, min_size=1, max_size=6), st.sampled_from(sorted(COMPARE)), _TEXT)
def test_text_is_compared_by_its_bytes(keys: list[str | None], sign: str, value: str) -> None:
    """As Spark does; a null meets no comparison."""
    rows = [message(number, "")._replace(key=key) for number, key in enumerate(keys)]
    found = _met(Condition("key", sign, (value,)), pa.Table.from_batches([batch_of(rows)]))
    assert found == [row.seq for row in rows if row.key is not None and COMPARE[sign](row.key.encode(), value.encode())]


@given(st.lists(st.integers(0, 9), min_size=1), st.sampled_from([*COMPARE, "in"]), st.lists(st.integers(-1, 10), min_size=1, max_size=3))
def test_a_segment_with_a_row_that_meets_it_is_never_left_out(times: list[int], sign: str, values: list[int]) -> None:
    condition = Condition("ts", sign, tuple(values if sign == "in" else values[:1]))
    entry = _entry(min_ts=min(times), max_ts=max(times))
    some = any(time in values if sign == "in" else COMPARE[sign](time, values[0]) for time in times)
    assert condition.may_hold(entry) or not some
    if not condition.may_hold(_entry(min_ts=times[0], max_ts=times[0])):
        assert not (times[0] in values if sign == "in" else COMPARE[sign](times[0], values[0]))


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (Condition("host", "=", ("alpha",)), True),
        (Condition("host", "starts", ("b",)), False),
        (Condition("host", "<", ("b",)), True),
        (Condition("host", "null"), False),
        (Condition("date", ">", ("2026-11-20",)), False),
        (Condition("hour", "in", (11, 12)), True),
        (Condition("hour", ">=", (13,)), False),
        (Condition("kind", "=", ("denial",)), False),
        (Condition("kind", "in", ("denial", "message")), True),
        (Condition("kind", ">", ("zzz",)), True),  # not known, so it is opened
        (Condition("seq", ">", (20,)), False),
        (Condition("ts", "not null"), True),
        (Condition("key", "=", ("x",)), True),
    ],
)
def test_segments_are_chosen_by_their_entry(condition: Condition, holds: bool) -> None:
    assert condition.may_hold(_entry()) is holds


def _entry(min_ts: int = 0, max_ts: int = 9) -> IndexEntry:
    path = "date=2026-11-20/hour=12/host=alpha/00000000000000000001.parquet"
    return IndexEntry(path, "2026-11-20", 12, "alpha", 10, 1, "", min_ts, max_ts, 1, 20, {"message": 10})


def _met(condition: Condition, table: pa.Table) -> list[int]:
    """Return the positions of the rows that meet *condition*, by Arrow."""
    return [row["seq"] for row in table.filter(condition.expression()).to_pylist()]
