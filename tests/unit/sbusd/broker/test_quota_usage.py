"""Token buckets, with a time that the test sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbusd.broker.quota_usage import TokenBucket


def test_a_full_bucket_gives_its_burst_and_no_more() -> None:
    bucket = TokenBucket.full(2, 3, 10.0)
    assert [bucket.take(10.0) for _ in range(5)] == [True, True, True, False, False]


def test_tokens_are_gained_with_time_up_to_the_burst() -> None:
    bucket = TokenBucket.full(2, 3, 0.0)
    for _ in range(3):
        bucket.take(0.0)
    assert bucket.take(0.4) is False
    assert bucket.take(0.5) is True
    assert bucket.take(0.5) is False
    assert [bucket.take(1_000.0) for _ in range(4)] == [True, True, True, False]


def test_a_clock_that_stops_or_goes_back_adds_nothing() -> None:
    bucket = TokenBucket.full(1, 1, 5.0)
    assert bucket.take(5.0)
    assert not bucket.take(4.0)
    assert not bucket.take(5.0)
    assert bucket.take(6.0)


def test_the_time_at_which_a_bucket_is_full() -> None:
    bucket = TokenBucket.full(2, 4, 1.0)
    assert bucket.full_at() == 1.0
    bucket.take(1.0)
    assert bucket.full_at() == 1.5


def test_resizing_refills_nothing() -> None:
    bucket = TokenBucket.full(1, 10, 0.0)
    for _ in range(8):
        bucket.take(0.0)
    bucket.resize(5, 20, 0.0)
    assert (bucket.rate, bucket.burst, bucket.tokens) == (5, 20, 12)
    bucket.resize(1, 4, 0.0)
    assert bucket.tokens == 0
    assert not bucket.take(0.5)


@given(st.integers(1, 50), st.integers(1, 50), st.lists(st.floats(0, 3), max_size=200))
def test_a_bucket_never_gives_more_than_burst_and_rate_allow(rate: int, burst: int, waits: list[float]) -> None:
    bucket, now, given_out = TokenBucket.full(rate, burst, 0.0), 0.0, 0
    for wait in waits:
        now += wait
        given_out += bucket.take(now)
    assert given_out <= burst + rate * now + 1e-6
