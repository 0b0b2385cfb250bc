"""Counts, sizes and durations: what is taken, and what a refusal says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_programs.config.quantities import NO_BOUND, SIZE_UNITS, Bound, Count, Duration, Size, Spelling, show, show_duration, show_size

COUNT = Count(1, 100, "a reason")
BOUND = Bound(1, 100, "a reason")
SIZE = Size(16, 1 << 30, "a reason")
DURATION = Duration(0.001, 86_400, "a reason")


@pytest.mark.parametrize(
    ("spelling", "value", "meaning"),
    [
        (COUNT, 1, 1),
        (COUNT, 100, 100),
        (BOUND, 100, 100),
        (BOUND, "none", NO_BOUND),
        (SIZE, 4096, 4096),
        (SIZE, "16B", 16),
        (SIZE, "8KiB", 8192),
        (SIZE, "64 MiB", 64 << 20),
        (SIZE, "1GiB", 1 << 30),
        (SIZE, "1.5KiB", 1536),
        (DURATION, "30s", 30.0),
        (DURATION, "100ms", 0.1),
        (DURATION, "1000us", 0.001),
        (DURATION, "2min", 120.0),
        (DURATION, "1.5h", 5400.0),
        (DURATION, "1d", 86_400.0),
    ],
)
def test_a_quantity_is_understood(spelling: Spelling, value: object, meaning: float) -> None:
    assert spelling.parse(value) == pytest.approx(meaning)


@pytest.mark.parametrize(
    ("spelling", "value", "reason"),
    [
        (COUNT, 0, "must be 1 to 100, not 0: a reason"),
        (COUNT, 101, "must be 1 to 100, not 101: a reason"),
        (COUNT, True, "must be a whole number from 1 to 100, not true"),
        (COUNT, "7", 'must be a whole number from 1 to 100, not "7"'),
        (BOUND, 0, 'must be 1 to 100, not 0: a reason; "none" means no limit'),
        (BOUND, "7", 'must be a whole number from 1 to 100, not "7"; "none" means no limit'),
        (BOUND, "None", 'must be a whole number from 1 to 100, not "None"; "none" means no limit'),
        (COUNT, 1.0, "must be a whole number from 1 to 100, not 1.0"),
        (SIZE, "64MB", '"64MB" is not a size; use a number of bytes, or a number with B, KiB, MiB or GiB, such as "64MiB"'),
        (SIZE, "MiB", '"MiB" is not a size; use a number of bytes, or a number with B, KiB, MiB or GiB, such as "64MiB"'),
        (SIZE, True, 'true is not a size; use a number of bytes, or a number with B, KiB, MiB or GiB, such as "64MiB"'),
        (SIZE, "16.3B", 'must be a whole number of bytes, not "16.3B"'),
        (SIZE, "2GiB", 'must be 16B to 1GiB, not "2GiB": a reason'),
        (SIZE, 15, "must be 16B to 1GiB, not 15: a reason"),
        (SIZE, -1, "must be 16B to 1GiB, not -1: a reason"),
        (DURATION, 30, '30 is not a duration; use a number with us, ms, s, min, h or d, such as "30s"'),
        (DURATION, "30", '"30" is not a duration; use a number with us, ms, s, min, h or d, such as "30s"'),
        (DURATION, "-1s", '"-1s" is not a duration; use a number with us, ms, s, min, h or d, such as "30s"'),
        (DURATION, "٣s", '"٣s" is not a duration; use a number with us, ms, s, min, h or d, such as "30s"'),
        (DURATION, "2d", 'must be 1ms to 1d, not "2d": a reason'),
        (DURATION, "0s", 'must be 1ms to 1d, not "0s": a reason'),
        (DURATION, [], 'an array is not a duration; use a number with us, ms, s, min, h or d, such as "30s"'),
    ],
)
def test_an_invalid_quantity_is_rejected_with_the_valid_form(spelling: Spelling, value: object, reason: str) -> None:
    with pytest.raises(ValueError) as refusal:
        spelling.parse(value)
    assert str(refusal.value) == reason


@given(st.sampled_from(sorted(SIZE_UNITS)), st.integers(1, 1 << 33))
def test_a_size_that_is_shown_is_read_back(unit: str, number: int) -> None:
    size = number * SIZE_UNITS[unit]
    assert Size(0, 1 << 70, "").parse(show_size(size)) == size


@pytest.mark.parametrize(("seconds", "shown"), [(0.1, "100ms"), (1, "1s"), (90, "1.5min"), (86_400, "1d"), (0.000_002, "2us")])
def test_a_duration_is_shown_in_its_largest_unit(seconds: float, shown: str) -> None:
    assert show_duration(seconds) == shown


def test_zero_bytes_are_shown() -> None:
    assert show_size(0) == "0B"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(True, "true"), (False, "false"), ("a\nb", r'"a\x0ab"'), ({}, "a table"), ([], "an array"), (3, "3"), ("x" * 99, f'"{"x" * 60}…"')],
)
def test_a_value_is_quoted_on_one_line(value: object, shown: str) -> None:
    assert show(value) == shown
