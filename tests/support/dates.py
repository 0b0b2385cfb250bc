"""Dates for tests of programs that delete by age."""

from __future__ import annotations

from sbus_programs.wall_clock import Clocks, WallClock


def fixed_date(date: int) -> WallClock:
    """Return a clock that always has this *date*, nanoseconds since 1970, and believes it."""

    def unexpected(line: str) -> None:
        raise AssertionError(line)

    return WallClock(unexpected, clocks=Clocks(lambda: date, lambda: 0, lambda: "boot"))
