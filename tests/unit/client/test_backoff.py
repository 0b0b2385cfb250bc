"""Delays between tries."""

from __future__ import annotations

from sbusd.client.backoff import FIRST_SECONDS, MOST_SECONDS, Backoff


def test_the_first_try_is_at_once_and_delays_are_bounded() -> None:
    backoff = Backoff(0.0)
    backoff.lost(100.0)
    assert backoff.due == 100.0
    delays = []
    for _ in range(30):
        backoff.attempt(100.0)
        delays.append(backoff.due - 100.0)
    assert all(FIRST_SECONDS / 2 <= delay <= MOST_SECONDS for delay in delays)
    assert delays[0] <= FIRST_SECONDS
    assert delays[-1] >= MOST_SECONDS / 2
    assert backoff.attempts == 30


def test_a_connection_that_does_not_last_is_not_tried_again_at_once() -> None:
    backoff = Backoff(0.0)
    backoff.lost(100.0)
    backoff.attempt(100.0)
    backoff.connected(100.0)
    backoff.lost(100.1)
    assert backoff.due > 100.1
    assert (backoff.attempts, backoff.since) == (0, 100.1)


def test_one_that_lasted_is() -> None:
    backoff = Backoff(0.0)
    backoff.lost(100.0)
    backoff.attempt(100.0)
    backoff.connected(100.0)
    backoff.lost(100.0 + MOST_SECONDS)
    assert backoff.due == 100.0 + MOST_SECONDS
