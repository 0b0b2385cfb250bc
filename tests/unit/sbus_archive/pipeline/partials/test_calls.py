"""Latency buckets, computed for a column."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sbus_archive.pipeline.partials.calls import buckets
from sbus_archive.tables.schema import bucket_of

_LONGEST = 1 << 40


@given(st.lists(st.none() | st.integers(0, _LONGEST) | st.integers(0, 40).map(lambda bits: (1 << bits) - 1)))
def test_buckets_are_those_of_single_values(values: list[int | None]) -> None:
    found = buckets(pa.chunked_array([pa.array(values, pa.int64())])).to_pylist()
    assert found == [None if value is None else bucket_of(value) for value in values]


def test_every_power_of_two_begins_a_bucket_of_its_own() -> None:
    values = [value for bits in range(41) for value in ((1 << bits) - 1, 1 << bits)]
    assert buckets(pa.chunked_array([pa.array(values, pa.int64())])).to_pylist() == [bucket_of(value) for value in values]
