"""Hours in order, and manifests that say the same when they are read again."""

from __future__ import annotations

import json

import pytest

from sbus_archive.record.layout import HOUR_NS, IndexEntry
from sbus_archive.tables.hours import Hour, Manifest
from tests.support.records import NOON

ENTRY = IndexEntry(
    path="date=2026-11-20/hour=12/host=alpha/00000000000000000001.parquet",
    date="2026-11-20",
    hour=12,
    host="alpha",
    rows=1,
    bytes=2,
    sha256="ab",
    min_ts=NOON,
    max_ts=NOON,
    first_seq=1,
    last_seq=1,
    kinds={"message": 1},
)


def test_an_hour_knows_its_time_and_its_neighbours() -> None:
    hour = Hour.at(NOON + HOUR_NS - 1)
    assert (hour, hour.start, str(hour)) == (Hour("2026-11-20", 12), NOON, "2026-11-20T12")
    last = Hour("2026-12-31", 23)
    assert last.following == Hour("2027-01-01", 0)
    assert last.following.preceding == last


def test_a_manifest_is_read_as_it_was_written() -> None:
    manifest = Manifest(Hour("2026-11-20", 12), 5, (ENTRY,), (ENTRY,), ("a",), ("b",), ("c",), {"beta": 3})
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "not a JSON object"),
        ('{"version": 0}', "unsupported version 0: this program has 1"),
        ('{"version": 99}', "unsupported version 99: this program has 1. Run sbus-pipeline --rebuild"),
        ('{"version": 1, "hour": {}}', "invalid manifest"),
        ('{"version": 1, "hour": {"date": "2026-11-20", "hour": 1}, "made": 1, "segments": [{}]}', "invalid manifest"),
    ],
)
def test_a_wrong_manifest_is_an_error(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Manifest.from_json(json.loads(text))
