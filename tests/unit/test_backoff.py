"""Delays between attempts double up to a maximum, and begin again after a connection that lasted."""

from __future__ import annotations

from sbusd.backoff import FIRST_SECONDS, MAX_SECONDS, STABLE_SECONDS, Backoff


def test_delays_double_up_to_a_maximum() -> None:
    backoff = Backoff()
    step = FIRST_SECONDS
    for _ in range(20):
        assert step / 2 <= backoff.delay() <= step
        step = min(step * 2, MAX_SECONDS)
    assert step == MAX_SECONDS


def test_only_a_connection_that_lasted_is_a_success() -> None:
    backoff = Backoff()
    for _ in range(20):
        backoff.delay()
    backoff.lasted(STABLE_SECONDS - 1)
    assert backoff.delay() > FIRST_SECONDS
    backoff.lasted(STABLE_SECONDS)
    assert backoff.delay() <= FIRST_SECONDS
