"""The limit on concurrent calls."""

from __future__ import annotations

from sbus_services.relay.bus.client import ConcurrencyLimit


def test_the_number_and_the_bytes_are_bounded_for_each_by_itself() -> None:
    limit = ConcurrencyLimit(2, 100)
    assert limit.problem("a", 100) == ""
    limit.acquire("a", 90)
    assert limit.problem("a", 10) == ""
    assert limit.problem("a", 11) == "calls in progress hold 90 bytes and this one 11; the limit is 100 bytes"
    limit.acquire("a", 10)
    assert limit.problem("a", 0) == "2 calls are already in progress"
    assert limit.problem("b", 100) == ""
    assert len(limit) == 2


def test_finished_calls_are_not_counted() -> None:
    limit = ConcurrencyLimit(1, 100)
    for _ in range(3):
        limit.acquire("a", 100)
        assert limit.problem("a", 0)
        limit.release("a", 100)
        assert limit.problem("a", 100) == ""
    assert len(limit) == 0
