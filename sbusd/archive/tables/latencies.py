"""Buckets of latencies: a histogram whose sums are exact, whatever was added up in which order. Spec: sbus-pipeline(8).

As in Gil Tene's HdrHistogram: a power of two is cut into :data:`STEPS` equal buckets, so a bucket is at most 1/32 of its values wide.
"""

from __future__ import annotations

from collections.abc import Iterable

STEPS = 32
"""Buckets from one power of two to the next: a percentile is at most 3.2 % above the true one."""

_STEP_BITS = STEPS.bit_length() - 1


def bucket_of(latency: int) -> int:
    """Return the bucket of *latency*, 0 or more; below 64 each value has its own."""
    shift = max(0, latency.bit_length() - 1 - _STEP_BITS)
    return (shift << _STEP_BITS) + (latency >> shift)


def upper_bound(bucket: int) -> int:
    """Return the largest latency in *bucket*."""
    shift = max(0, (bucket >> _STEP_BITS) - 1)
    return ((bucket - (shift << _STEP_BITS) + 1) << shift) - 1


def percentile(histogram: Iterable[tuple[int, int]], percent: int, longest: int) -> int | None:
    """Return the upper bound of the bucket with the *percent*-th percentile (nearest rank), or *longest*, the longest latency, if that is
    less; None if nothing was counted.

    *histogram* is pairs of bucket and count, in any order; a bucket may stand there several times. *percent* is 1 to 100.
    """
    pairs = sorted(histogram)
    rank = -(-sum(count for _, count in pairs) * percent // 100)
    seen = 0
    for bucket, count in pairs:
        seen += count
        if count and seen >= rank:
            return min(upper_bound(bucket), longest)
    return None
