"""The periods that a report is compared with."""

from __future__ import annotations

from sbusd.archive.record.layout import HOUR_NS
from sbusd.archive.tables.hours import Hour
from sbusd.report.comparison import earlier_periods, length_of
from tests.support.records import NOON


def hours(count: int) -> list[Hour]:
    """Return *count* hours from noon."""
    return [Hour.at(NOON + number * HOUR_NS) for number in range(count)]


def test_earlier_periods_have_the_same_length() -> None:
    found = earlier_periods(hours(5))
    assert [(each.name, str(each.since), str(each.until)) for each in found] == [
        ("day", "2026-11-19T12", "2026-11-19T16"),
        ("week", "2026-11-13T12", "2026-11-13T16"),
    ]


def test_a_period_is_not_compared_with_itself() -> None:
    names = {count: [each.name for each in earlier_periods(hours(count))] for count in (0, 1, 24, 25, 168, 169)}
    assert names == {0: [], 1: ["day", "week"], 24: ["day", "week"], 25: ["week"], 168: ["week"], 169: []}


def test_hours_between_belong_to_the_period() -> None:
    assert length_of([Hour.at(NOON), Hour.at(NOON + 30 * HOUR_NS)]) == 31
    assert length_of([]) == 0
