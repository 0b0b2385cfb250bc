"""Buckets of latencies lie side by side, are narrow, and give percentiles that are a little too large at most."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sbusd.archive.tables.latencies import STEPS, bucket_of, percentile, upper_bound


def test_buckets_lie_side_by_side() -> None:
    bounds = [upper_bound(bucket) for bucket in range(40 * STEPS)]
    assert bounds == sorted(set(bounds))
    for below, above in itertools.pairwise(bounds):
        assert bucket_of(below) + 1 == bucket_of(below + 1) == bucket_of(above)


@given(st.integers(0, 2**62))
def test_a_latency_is_in_its_bucket(latency: int) -> None:
    bound = upper_bound(bucket_of(latency))
    assert latency <= bound <= latency * (1 + 1 / STEPS)


@given(st.lists(st.integers(0, 2**40), min_size=1), st.integers(1, 100))
def test_a_percentile_is_a_little_too_large_at_most(latencies: list[int], percent: int) -> None:
    true = sorted(latencies)[-(-len(latencies) * percent // 100) - 1]
    found = percentile([(bucket_of(latency), 1) for latency in latencies], percent, max(latencies))
    assert found == min(upper_bound(bucket_of(true)), max(latencies))


def test_nothing_has_no_percentile() -> None:
    assert percentile([], 50, 0) is None
    assert percentile([(3, 0)], 50, 3) is None
