"""How the hours of a computation are divided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sbus_archive.pipeline.partials import portions
from sbus_archive.pipeline.partials.portions import Portion, grouped, portions_of
from sbus_archive.record.layout import IndexEntry, SegmentName
from sbus_archive.tables.hours import Hour, Manifest

HOUR = Hour("2026-11-20", 12)


def entry(host: str, seq: int, rows: int = 10, hour: Hour = HOUR, **kinds: int) -> IndexEntry:
    """Return an index entry; other rows are messages."""
    path = SegmentName(hour.date, hour.hour, host, seq).path
    counts = {"message": rows - sum(kinds.values()), **kinds}
    return IndexEntry(path, hour.date, hour.hour, host, rows, rows, "0", hour.start, hour.start, seq, seq + rows - 1, counts)


def sizes(found: list[Portion]) -> list[tuple[str, int]]:
    """Return host and number of segments of each portion."""
    return [(portion.host, len(portion.segments)) for portion in found]


def test_a_portion_has_rows_of_one_host_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "PORTION_ROWS", 25)
    manifest = Manifest(HOUR, 0, (*(entry("a", seq) for seq in range(5)), entry("b", 9, 100)))
    found = portions_of("traffic", [manifest])
    assert sizes(found) == [("a", 2), ("a", 2), ("a", 1), ("b", 1)]
    assert [portion.rows for portion in found] == [20, 20, 10, 100]
    assert [len(group) for group in grouped(found, 1)] == [1, 1, 1, 1]


def test_a_portion_has_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before compression, as a user can publish long keys."""
    monkeypatch.setattr(portions, "PORTION_BYTES", 100)
    sized = [replace(entry("a", seq), users={"1000": 30, "1001": 10}, unnamed=5) for seq in range(5)]
    assert sizes(portions_of("traffic", [Manifest(HOUR, 0, tuple(sized))])) == [("a", 2), ("a", 2), ("a", 1)]
    assert [portion.shares for portion in portions_of("calls", [Manifest(HOUR, 0, tuple(sized))])] == [4] * 4


def test_each_processor_has_several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [entry(f"host{number}", number) for number in range(200)]
    small = portions_of("traffic", [Manifest(HOUR, 0, tuple(hosts))])
    assert [len(group) for group in grouped(small[:16], 2)] == [4, 4, 4, 4]
    assert [len(group) for group in grouped(small[:1], 2)] == [1]
    assert [len(group) for group in grouped(small, 1)] == [64, 64, 64, 8]
    monkeypatch.setattr(portions, "PORTION_ROWS", 30)
    assert {len(group) for group in grouped(small[:198], 1)} == {3}


def test_segments_without_rows_of_the_kind_are_left_out() -> None:
    without, counted = entry("a", 1), entry("a", 2, denial=1)
    uncounted = IndexEntry.from_json(entry("a", 3).to_json().replace('"message":10', '"message":9'))
    found = portions_of("security", [Manifest(HOUR, 0, (without, counted, uncounted))])
    assert [portion.segments for portion in found] == [(counted, uncounted)]
    assert portions_of("relay", [Manifest(HOUR, 0, (without,))]) == []


def test_flows_have_all_subscriptions_of_the_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "PORTION_ROWS", 10)
    active = entry("a", 1, snapshot=3)
    found = portions_of("flows", [Manifest(HOUR, 0, (active, entry("a", 2), entry("b", 3)))])
    assert [(portion.host, portion.others) for portion in found] == [("a", (active,)), ("a", (active,)), ("b", ())]


def test_calls_are_divided_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portions, "CALLS_ROWS", 10)
    own, next_one, other = entry("a", 1, 33), entry("a", 2, hour=HOUR.following), entry("b", 3, hour=HOUR.following)
    found = portions_of("calls", [Manifest(HOUR, 0, (own,), (next_one, other))])
    assert [(portion.share, portion.shares) for portion in found] == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert [(portion.segments, portion.others, portion.rows) for portion in found] == [((own,), (next_one,), 8)] * 4


def test_states_of_following_hours_are_read_once() -> None:
    first, second, third = entry("a", 1), entry("a", 2, hour=HOUR.following), entry("a", 3, hour=HOUR.following.following)
    hours = [Manifest(HOUR, 0, (first,), (second,)), Manifest(HOUR.following, 0, (second,), (third,))]
    found = portions_of("links", hours)
    assert [(portion.segments, portion.is_following) for portion in found] == [((first,), False), ((second,), False), ((third,), True)]
    assert [portion.hour for portion in found] == [HOUR, HOUR.following, HOUR.following.following]
