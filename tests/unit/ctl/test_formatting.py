"""Numbers and times for people."""

from __future__ import annotations

import pytest

from sbusd.ctl.formatting import (
    compact_bytes,
    compact_count,
    human_bytes,
    human_count,
    human_duration,
    human_microseconds,
    percentile,
)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (None, "-"),
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (1536, "1.5KiB"),
        (1024 * 1024 - 1, "1MiB"),
        (20 << 20, "20MiB"),
        (3 << 60, "3EiB"),
        (5000 << 60, "5000EiB"),
        (-2048, "-2KiB"),
    ],
)
def test_bytes(number: int | None, shown: str) -> None:
    assert human_bytes(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (-3.0, "0s"),
        (0.9, "0s"),
        (59.99, "59s"),
        (60, "1min"),
        (61, "1min1s"),
        (3600, "1h"),
        (3605, "1h"),
        (3 * 3600 + 120, "3h2min"),
        (86_400 * 4 + 2 * 3600 + 7, "4d2h"),
        (86_400 + 59, "1d"),
    ],
)
def test_duration(seconds: float | None, shown: str) -> None:
    assert human_duration(seconds) == shown


def test_count_and_round_trip() -> None:
    assert human_count(None) == "-"
    assert human_count(12) == "12"
    assert human_microseconds(0.0000634) == "63us"


@pytest.mark.parametrize(("percent", "value"), [(50, 2.0), (25, 1.0), (75, 3.0), (76, 4.0), (99, 4.0), (100, 4.0), (0.01, 1.0)])
def test_percentile_is_the_nearest_rank(percent: float, value: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == value
    assert percentile([7.0], percent) == 7.0


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (0.4, "0"),
        (1023, "1023"),
        (1023.4, "1023"),
        (1023.5, "1K"),
        (1024, "1K"),
        (1536, "1.5K"),
        (10_000, "9.8K"),
        (10_240, "10K"),
        (1023 * 1024, "1023K"),
        (1024 * 1024 - 1, "1M"),
        (1 << 63, "8E"),
        ((1 << 64) - 1, "16E"),
    ],
)
def test_compact_bytes(number: float | None, shown: str) -> None:
    assert compact_bytes(number) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (0.001, "0.1"),
        (0.96, "1"),
        (1.25, "1.2"),
        (2.0, "2"),
        (9.94, "9.9"),
        (9.96, "10"),
        (99_999.4, "99999"),
        (99_999.5, "100k"),
        (123_456, "123k"),
        (999_400, "999k"),
        (999_500, "1M"),
        (4_512_345, "4.5M"),
    ],
)
def test_compact_counts(number: float | None, shown: str) -> None:
    assert compact_count(number) == shown


@pytest.mark.parametrize("exponent", range(64))
def test_compact_numbers_have_five_characters_at_most(exponent: int) -> None:
    for number in ((1 << exponent) - 1, 1 << exponent, (1 << exponent) + 1, (1 << exponent) * 0.999):
        assert len(compact_bytes(number)) <= 5
        assert len(compact_count(number)) <= 5
