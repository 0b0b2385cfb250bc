"""The first of keys in an order that changes, against a plain search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.recorder.ranking import Ranking


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(-3, 3)), max_size=300))
def test_the_first_is_the_one_that_a_search_finds(changes: list[tuple[int, int | None]]) -> None:
    ranking: Ranking[int] = Ranking()
    numbers: dict[int, int] = {}
    for key, number in changes:
        if number is not None:
            numbers[key] = number
            ranking.put(key, number)
        elif key in numbers:
            del numbers[key]
            ranking.drop(key)
        else:
            with pytest.raises(KeyError):
                ranking.drop(key)
        assert ranking.first() == min(numbers, key=lambda each: (numbers[each], each), default=None)
        assert len(ranking) == len(numbers)


def test_what_is_outdated_is_forgotten() -> None:
    ranking: Ranking[str] = Ranking()
    ranking.put("first", -1)
    for number in range(10_000):
        ranking.put("changing", number)
        assert len(ranking._items) <= 100
    assert ranking.first() == "first"
