"""How often a cause may be recorded about a user, told with a clock of the test's own."""

from __future__ import annotations

from sbusd.broker.rate_limit import RateLimiter, Suppressed


def test_a_burst_passes_and_the_rest_is_counted() -> None:
    limiter: RateLimiter[str] = RateLimiter(2, 10.0)
    assert [limiter.allows("a", 1, now) for now in (0.0, 1.0, 2.0, 9.9)] == [True, True, False, False]
    assert limiter.ended(9.9) == []
    assert limiter.next_end() == 10.0
    assert limiter.ended(10.0) == [Suppressed("a", 1, 2)]
    assert limiter.next_end() is None
    assert limiter.allows("a", 1, 10.0)


def test_a_window_that_left_nothing_out_ends_in_silence() -> None:
    limiter: RateLimiter[str] = RateLimiter(1, 10.0)
    limiter.allows("a", 1, 0.0)
    assert limiter.ended(10.0) == []
    assert len(limiter) == 0


def test_causes_and_users_have_windows_of_their_own() -> None:
    limiter: RateLimiter[str] = RateLimiter(1, 10.0)
    assert all(limiter.allows(cause, uid, 0.0) for cause in "ab" for uid in (None, 0, 1))
    assert not any(limiter.allows(cause, uid, 1.0) for cause in "ab" for uid in (None, 0, 1))


def test_windows_end_in_the_order_in_which_they_were_opened() -> None:
    limiter: RateLimiter[str] = RateLimiter(1, 10.0)
    for number in range(3):
        limiter.allows("a", number, float(number))
        limiter.allows("a", number, float(number))
    assert limiter.ended(11.0) == [Suppressed("a", 0, 1), Suppressed("a", 1, 1)]
    assert limiter.next_end() == 12.0


def test_many_users_cost_no_more_memory_and_do_not_suppress_known_ones() -> None:
    limiter: RateLimiter[str] = RateLimiter(2, 10.0, max_windows=3)
    assert limiter.allows("a", 0, 0.0)
    passed = sum(limiter.allows("a", uid, 1.0) for uid in range(1, 1001))
    assert passed == 2 + 2  # two with a window of their own, and two of all the others together
    assert len(limiter) == 4
    assert limiter.allows("a", 0, 2.0)
    assert limiter.next_end() == 10.0
    assert limiter.ended(11.0) == [Suppressed("a", None, 996)]
    assert len(limiter) == 0


def test_the_crowds_window_ends_as_any_other() -> None:
    limiter: RateLimiter[str] = RateLimiter(1, 10.0, max_windows=1)
    limiter.allows("a", 0, 5.0)
    limiter.allows("a", 1, 6.0)
    limiter.allows("b", 1, 7.0)
    assert limiter.ended(15.0) == []
    assert limiter.next_end() == 16.0
    assert limiter.allows("a", 2, 15.0)  # there is room again
    assert limiter.ended(17.0) == []
    assert len(limiter) == 1
