"""What a report covers, and what is missing."""

from __future__ import annotations

from dataclasses import replace

from sbus_archive.record.layout import HOUR_NS
from sbus_archive.report.aggregation import MOST_CHARACTERS
from sbus_archive.report.coverage import coverage_of, earlier_periods, length_of
from sbus_archive.tables.hours import SILENT_HOURS, Hour, Manifest
from tests.support.records import NOON
from tests.unit.sbus_archive.tables.test_hours import ENTRY


def manifest(
    hour: int, *hosts: str, absent: tuple[str, ...] = (), removed: tuple[str, ...] = (), left_out: tuple[str, ...] = ()
) -> Manifest:
    """Return the manifest of an hour counted from noon, with one segment of each host."""
    start = NOON + hour * HOUR_NS
    entries = tuple(
        replace(ENTRY, host=host, rows=10, min_ts=start, max_ts=start + 5, missing=1, payloads_cut=2, payloads_left_out=3) for host in hosts
    )
    return Manifest(Hour.at(start), 1, entries, (), absent, removed, left_out)


def test_hosts_are_added_up_and_gaps_found() -> None:
    found = coverage_of(
        [manifest(0, "a", "b"), manifest(1, "a"), manifest(4, "a", "b", absent=("x",)), manifest(5, left_out=("y",), removed=("z",))]
    )
    assert found.records == 50
    assert found.period == (NOON, NOON + 4 * HOUR_NS + 5)
    assert found.gaps() == [("a", NOON + 2 * HOUR_NS, NOON + 4 * HOUR_NS), ("b", NOON + HOUR_NS, NOON + 4 * HOUR_NS)]
    assert (found.missing, found.absent, found.left_out, found.removed) == (5, ("x",), ("y",), ("z",))
    assert not found.is_whole
    data = found.to_json()
    assert (data["period"], data["hostCount"], data["names"]) == ([NOON // 10**6, (NOON + 4 * HOUR_NS) // 10**6], 2, ["a", "b"])
    assert (data["records"], data["missing"], data["payloads"]) == (50, 5, 25)
    assert data["hosts"][1] == {
        "host": "b",
        "records": 20,
        "first": NOON // 10**6,
        "last": (NOON + 4 * HOUR_NS) // 10**6,
        "hours": 2,
        "missing": 2,
        "cut": 4,
        "leftOut": 6,
    }


def test_many_gaps_are_counted_and_the_latest_are_listed() -> None:
    found = coverage_of(manifest(hour, "a") for hour in range(0, 140, 2)).to_json()
    assert (len(found["gaps"]), found["moreGaps"]) == (50, 19)
    assert found["gaps"][0]["from"] > found["gaps"][1]["from"]


def test_a_record_begins_with_a_start_and_any_further_one_interrupts_it() -> None:
    def started(times: int) -> bool:
        made = manifest(0, "a")
        entry = replace(made.segments[0], missing=0, kinds={"restart": times})
        return coverage_of([replace(made, segments=(entry,))]).is_whole

    assert [started(times) for times in (0, 1, 2)] == [True, True, False]


def test_a_host_that_stopped_is_not_whole() -> None:
    whole = [replace(entry, missing=0) for entry in manifest(0, "a", "b").segments]
    later = [replace(entry, missing=0) for hour in (1, 2, 3) for entry in manifest(hour, "a").segments]
    hours = [Manifest(Hour.at(entry.min_ts), 1, (entry,)) for entry in later]
    first = Manifest(Hour.at(NOON), 1, tuple(whole))
    assert [dict(coverage_of([first, *hours[:count]]).silent) for count in range(4)] == [{}, {"b": 1}, {"b": 2}, {"b": 3}]
    found = coverage_of([first, *hours])
    assert (found.gaps(), found.is_whole) == ([], False)
    assert found.to_json()["silent"] == [{"host": "b", "hours": 3}]


def test_a_host_that_stopped_before_the_period_is_known_by_the_last_manifest() -> None:
    last = replace(manifest(5, "a"), silent={"b": 30})
    found = coverage_of([replace(manifest(4, "a"), silent={"b": 29, "c": 9}), last])
    assert dict(found.silent) == {"b": 30}


def test_a_host_that_is_gone_for_a_week_is_not_missing() -> None:
    """Its limit is that of the manifests, which name the hosts without rows in the period."""
    assert SILENT_HOURS == 7 * 24

    def silent(hours: int) -> dict[str, int]:
        present = [manifest(hour, "a") for hour in range(1, hours)]
        return dict(coverage_of([manifest(0, "a", "gone"), *present, replace(manifest(hours, "a"), silent={"left": hours})]).silent)

    assert silent(SILENT_HOURS) == {"gone": SILENT_HOURS, "left": SILENT_HOURS}
    assert silent(SILENT_HOURS + 1) == {}


def test_nothing_covers_nothing_and_misses_nothing() -> None:
    found = coverage_of([])
    assert (found.period, found.records, found.is_whole) == (None, 0, True)


def test_a_fleet_is_bounded_and_its_sums_are_whole() -> None:
    names = [f"h{number:03}" for number in range(250)]
    found = coverage_of([manifest(0, *names), manifest(2, names[0])]).to_json()
    assert (found["hostCount"], len(found["hosts"]), len(found["names"]), found["hosts"][0]["host"]) == (250, 100, 20, "h000")
    assert (found["records"], found["missing"]) == (2510, 251)
    assert (found["silentCount"], len(found["silent"])) == (249, 20)


def test_long_host_names_are_truncated() -> None:
    found = coverage_of([manifest(0, "x" * 900), manifest(4, "y")]).to_json()
    assert max(len(name) for name in (*found["names"], *(host["host"] for host in found["hosts"]))) == MOST_CHARACTERS + 1
    assert len(found["silent"][0]["host"]) == MOST_CHARACTERS + 1


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
