"""The periods of the same length that a report compares its own with: one day and one week earlier."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sbusd.archive.record.layout import HOUR_NS
from sbusd.archive.tables.hours import Hour
from sbusd.archive.tables.storage import TableSnapshot

COMPARED = ("traffic", "calls", "losses", "security")
"""The tables that a comparison needs."""

SHIFTS = {"day": 24, "week": 168}
"""Hours from each earlier period to that of the report. A longer report would overlap with the earlier period, so there is no
comparison."""


@dataclass(frozen=True, slots=True)
class Period:
    """Hours from ``since`` to ``until``, inclusive; ``name`` is a key of SHIFTS."""

    name: str
    since: Hour
    until: Hour


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier period, and the tables COMPARED of its hours."""

    period: Period
    snapshot: TableSnapshot


def length_of(hours: Collection[Hour]) -> int:
    """Return the number of hours from the first to the last of *hours*, inclusive; 0 if there are none."""
    return (max(hours).start - min(hours).start) // HOUR_NS + 1 if hours else 0


def earlier_periods(hours: Collection[Hour]) -> list[Period]:
    """Return the periods to compare a report of *hours* with."""
    length = length_of(hours)
    return [
        Period(name, Hour.at(min(hours).start - shift * HOUR_NS), Hour.at(max(hours).start - shift * HOUR_NS))
        for name, shift in SHIFTS.items()
        if 0 < length <= shift
    ]
