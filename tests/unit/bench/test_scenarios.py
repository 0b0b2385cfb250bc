"""The order of turns."""

from __future__ import annotations

from tests.bench.scenarios import in_turns


def test_each_round_measures_both_and_reverses_the_order_of_the_one_before() -> None:
    seen: list[str] = []

    def measure(name: str) -> int:
        seen.append(name)
        return len(seen)

    values, references = in_turns(3, lambda: measure("value"), lambda: measure("reference"))
    assert seen == ["value", "reference", "reference", "value", "value", "reference"]
    assert values == [1, 4, 5]
    assert references == [2, 3, 6]
