"""How often work that takes long is allowed."""

from __future__ import annotations

from sbus_services.feeds.rate_limit import RateLimit


def test_first_is_due_at_once() -> None:
    assert RateLimit(1.0).next_time < 0


def test_cheap_is_bounded_by_the_interval() -> None:
    limit = RateLimit(1.0)
    limit.record(100.0, 100.01)
    assert limit.next_time == 101.0


def test_costly_is_bounded_by_its_share_of_the_time() -> None:
    limit = RateLimit(1.0)
    limit.record(100.0, 102.0)
    assert limit.next_time == 120.0
