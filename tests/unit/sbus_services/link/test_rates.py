"""Rates, and rates that users share."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sbus_services.link.rates import Rate, SharedRate

RATES = st.integers(1, 40)
PAUSES = st.integers(0, 64).map(lambda number: number / 64)
"""Seconds that binary numbers have exactly."""
BURSTS = st.lists(st.tuples(PAUSES, st.integers(0, 3), st.integers(1, 50)), max_size=40)
"""The time since the last burst, the user, and the number of messages."""


@given(RATES, BURSTS)
def test_a_user_alone_has_the_whole_rate(rate: int, bursts: list[tuple[float, int, int]]) -> None:
    shared, alone, now = SharedRate(rate), Rate(rate, rate), 0.0
    for pause, _, count in bursts:
        now += pause
        assert [shared.take(1, now) for _ in range(count)] == [alone.take(now) for _ in range(count)]


@given(RATES, BURSTS)
def test_a_user_within_its_part_loses_nothing(rate: int, bursts: list[tuple[float, int, int]]) -> None:
    """User 0 of four sends the last messages of each turn. The other users send any number."""
    shared, now = SharedRate(rate), 0.0
    part = 0.999 * rate / 4
    own = Rate(part, max(1.0, part))
    for pause, user, count in bursts:
        now += pause
        for _ in range(count):
            shared.take(1 + user % 3, now)
        while own.take(now):
            assert shared.take(0, now)


@given(RATES, BURSTS)
def test_all_users_have_the_rate_together(rate: int, bursts: list[tuple[float, int, int]]) -> None:
    """Each who begins can use a part in advance."""
    shared, now, used = SharedRate(rate), 0.0, Counter[int]()
    for pause, user, count in bursts:
        now += pause
        for _ in range(count):
            if shared.take(user, now):
                used[user] += 1
        assert used.total() <= rate * now + sum(max(1, rate / users) for users in range(1, 5)) + 1e-6


def test_users_who_want_more_than_the_rate_get_equal_parts() -> None:
    shared, used = SharedRate(12), Counter[int]()
    for second in range(100):
        for user, count in ((1, 50), (2, 20), (3, 2), (1, 50)):
            used[user] += sum(shared.take(user, float(second)) for _ in range(count))
    assert used[3] == 200
    assert abs(used[1] - used[2]) <= 12
    assert 1_200 <= used.total() <= 1_200 + 12
