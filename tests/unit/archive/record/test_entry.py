"""What an index entry says survives its encoding; other tests of entries are those of the index."""

from __future__ import annotations

import dataclasses

import pytest

from sbusd.archive.record.entry import IndexEntry
from sbusd.archive.record.layout import HOUR_NS, SegmentName
from tests.unit.archive.record.test_index import entry


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
