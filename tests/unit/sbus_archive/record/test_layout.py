"""Names in an archive."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_archive.record.layout import HOUR_NS, IndexEntry, SegmentName, hour_of, is_host, is_hour
from sbus_archive.storage.files import temporary
from sbus_archive.tables.hours import Hour
from tests.support.records import NOON
from tests.unit.sbus_archive.record.test_index import entry


def test_a_segment_lies_in_the_folder_of_its_hour() -> None:
    name = SegmentName.at(NOON + HOUR_NS - 1, "alpha", 17)
    assert name.path == "date=2026-11-20/hour=12/host=alpha/00000000000000000017.parquet"
    assert name.index_path == "index/2026-11-20T12.alpha.00000000000000000017.json"
    assert SegmentName.parse(name.path) == name


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.sampled_from(["a", "a.b-c", "0"]))
def test_any_name_survives_encoding(ts: int, first_seq: int, host: str) -> None:
    name = SegmentName.at(ts, host, first_seq)
    assert SegmentName.parse(name.path) == name
    assert hour_of(ts) <= ts < hour_of(ts) + HOUR_NS
    assert name.start_ns == hour_of(ts)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "../etc/passwd",
        "date=2026-11-20/hour=24/host=a/00000000000000000001.parquet",
        "date=0001-01-01/hour=00/host=a/00000000000000000001.parquet",
        "date=9999-12-31/hour=23/host=a/00000000000000000001.parquet",
        "date=2026-11-20/hour=1\u0662/host=a/00000000000000000001.parquet",
        "date=2026-13-20/hour=12/host=a/00000000000000000001.parquet",
        "date=2026-11-20/hour=12/host=../00000000000000000001.parquet",
        "date=2026-11-20/hour=12/host=a/1.parquet",
        "date=2026-11-20/hour=12/host=a/00000000000000000001.parquet\n",
    ],
)
def test_an_invalid_segment_path_is_rejected(path: str) -> None:
    with pytest.raises(ValueError):
        SegmentName.parse(path)


@pytest.mark.parametrize(
    ("date", "hour", "right"),
    [
        ("1970-01-01", 0, True), ("9000-12-31", 23, True), ("2028-02-29", 1, True),
        ("1969-12-31", 23, False), ("9001-01-01", 0, False), ("0001-01-01", 0, False), ("9999-12-31", 23, False),
        ("2027-02-29", 0, False), ("2026-13-45", 0, False), ("2026-11-20", 24, False), ("2026-W47-5", 0, False), ("20261120", 0, False),
    ],
)  # fmt: skip
def test_hours_are_those_whose_neighbours_can_be_computed(date: str, hour: int, right: bool) -> None:
    assert is_hour(date, hour) is right
    if right:
        assert Hour(date, hour).preceding < Hour(date, hour) < Hour(date, hour).following


@pytest.mark.parametrize(
    ("name", "right"),
    [("alpha", True), ("a.b.c", True), ("a_1-x", True), ("", False), (".", False), ("..", False), ("a/b", False), ("a b", False)],
)
def test_hosts(name: str, right: bool) -> None:
    assert is_host(name) is right


def test_a_draft_is_hidden_in_the_folder_of_its_target() -> None:
    assert temporary(Path("/x/y.json")) == Path("/x/.y.json.tmp")


def test_an_entry_survives_encoding() -> None:
    removed = dataclasses.replace(entry(), users={"1000": 7}, unnamed=2, uid=1000, removed_at=5, removed_because="quota")
    for each in (entry(), removed):
        assert IndexEntry.from_json(each.to_json()) == each
    assert (entry().is_removed, removed.is_removed) == (False, True)


def test_an_entry_names_its_segment() -> None:
    assert SegmentName.parse(entry(7).path) == entry(7).name


@pytest.mark.parametrize(
    ("name", "shift"), [("min_ts", -HOUR_NS), ("min_ts", HOUR_NS), ("min_ts", 10**9), ("max_ts", HOUR_NS), ("max_ts", -HOUR_NS)]
)
def test_times_outside_the_hour_are_damage(name: str, shift: int) -> None:
    """Retention would remove the segment, or never remove it."""
    good = dataclasses.replace(entry(), max_ts=entry().min_ts)
    damaged = dataclasses.replace(good, **{name: getattr(good, name) + shift})
    with pytest.raises(ValueError, match="'min_ts' and 'max_ts' are not in its hour"):
        IndexEntry.from_json(damaged.to_json())
