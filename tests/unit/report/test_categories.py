"""The most used values have names of their own."""

from __future__ import annotations

import pyarrow as pa

from sbusd.report.categories import OTHERS, UNKNOWN, most_used


def test_the_heaviest_are_named_and_the_others_are_one() -> None:
    found = most_used([("a", 1), ("b", 5), ("c", 2), ("a", 3), (None, 9)], 2, str.upper)
    assert found.labels == ("B", "A", OTHERS)
    assert [found.number(value) for value in ("b", "a", "c", None, "new")] == [0, 1, 2, 2, 2]


def test_nothing_known_can_be_a_name() -> None:
    found = most_used([(1000, 1), (None, 9)], 5, str, UNKNOWN)
    assert found.labels == (UNKNOWN, "1000", OTHERS)
    assert (found.number(None), found.number(1000), found.number(7)) == (0, 1, 2)


def test_no_values_leave_all_others() -> None:
    assert most_used([], 5, str).labels == (OTHERS,)


def test_a_column_has_the_numbers_of_its_values() -> None:
    words = most_used([("a", 1), ("b", 5)], 2, str.upper)
    users = most_used([(1000, 1), (None, 9)], 5, str, UNKNOWN)
    texts, numbers = (pa.table({"x": pa.array(values)}).column("x") for values in (["b", None, "a", "new", "b"], [7, None, 1000]))
    assert words.numbers(texts).to_pylist() == [words.number(value) for value in texts.to_pylist()] == [0, 2, 1, 2, 0]
    assert users.numbers(numbers).to_pylist() == [users.number(value) for value in numbers.to_pylist()] == [2, 0, 1]
    assert most_used([], 5, str).numbers(texts).to_pylist() == [0] * 5
