"""Latency buckets: a histogram with exact sums, independent of the order of additions. Spec: sbus-pipeline(8).

As in HdrHistogram by Gil Tene, each power of two has :data:`STEPS` equal buckets, so the width of a bucket is at most 1/32 of its values.
"""

from __future__ import annotations

from collections.abc import Iterable

STEPS = 32
"""Buckets per power of two: a percentile is at most 3.2 % too high."""

_STEP_BITS = STEPS.bit_length() - 1


def bucket_of(latency: int) -> int:
    """Return the bucket of *latency*, at least 0; each value below 64 has its own."""
    shift = max(0, latency.bit_length() - 1 - _STEP_BITS)
    return (shift << _STEP_BITS) + (latency >> shift)


def upper_bound(bucket: int) -> int:
    """Return the largest latency in *bucket*."""
    shift = max(0, (bucket >> _STEP_BITS) - 1)
    return ((bucket - (shift << _STEP_BITS) + 1) << shift) - 1


def percentile(histogram: Iterable[tuple[int, int]], percent: int, longest: int) -> int | None:
    """Return the upper bound of the bucket of a percentile (nearest rank), at most *longest*, the longest latency; None without values.

    *histogram* has pairs of bucket and count, in any order; a bucket may occur several times. *percent* is 1 to 100.
    """
    pairs = sorted(histogram)
    rank = -(-sum(count for _, count in pairs) * percent // 100)
    seen = 0
    for bucket, count in pairs:
        seen += count
        if count and seen >= rank:
            return min(upper_bound(bucket), longest)
    return None
