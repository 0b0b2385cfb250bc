"""Questions about all hours are answered by the log; only manifests that are asked for are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.archive.files import TablesError
from sbusd.archive.storage.local import LocalStore
from sbusd.archive.tables import published
from sbusd.archive.tables.data_files import folder_of
from sbusd.archive.tables.hours import MANIFESTS, Hour, Manifest
from sbusd.archive.tables.publication import TableWriter
from sbusd.archive.tables.published import open_published, write_manifests
from tests.support.table_versions import HOUR

HOURS = [HOUR]
for _ in range(9):
    HOURS.append(HOURS[-1].following)


def publish(root: Path) -> None:
    """Publish the hours; every third one lacks segments."""
    TableWriter(root).publish([Manifest(hour, 1, (), absent=("a", "b") * (not number % 3)) for number, hour in enumerate(HOURS)])


def damage(root: Path, hour: Hour) -> None:
    """Overwrite the file of the manifest of *hour*."""
    (path,) = (root / MANIFESTS / folder_of(hour)).iterdir()
    path.write_bytes(b"")


def test_incomplete_hours_are_known_without_reading_a_manifest(tmp_path: Path) -> None:
    publish(tmp_path)
    for hour in HOURS:
        damage(tmp_path, hour)
    found = open_published(tmp_path)
    assert found.hours() == HOURS
    assert found.incomplete_hours() == set(HOURS[::3])


def test_only_the_wanted_manifests_are_read(tmp_path: Path) -> None:
    publish(tmp_path)
    for hour in HOURS[2:]:
        damage(tmp_path, hour)
    found = open_published(tmp_path).manifests_of([HOURS[1], HOURS[0], Hour("2030-01-01", 1)])
    assert list(found) == HOURS[:2]
    assert found[HOURS[0]] == Manifest(HOURS[0], 1, (), absent=("a", "b"))
    assert open_published(tmp_path).manifests_of([]) == {}
    with pytest.raises(TablesError, match="cannot read file"):
        open_published(tmp_path).manifests_of([HOURS[2]])


def test_a_manifest_of_another_version_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbusd.archive.tables.hours.VERSION", 99)
    publish(tmp_path)
    monkeypatch.undo()
    with pytest.raises(TablesError, match=r"hours: unsupported version 99: this program has \d+\. Run sbus-pipeline --rebuild"):
        open_published(tmp_path).manifests_of(HOURS)


def test_a_large_manifest_is_not_in_the_log(tmp_path: Path) -> None:
    (file,) = write_manifests(LocalStore(tmp_path), [Manifest(HOUR, 1, (), absent=tuple(f"segment {number}" for number in range(1000)))])
    assert len(file.statistics) < 300
    assert published.HOURS_SCHEMA.names == ["manifest", "absent", "date", "hour"]
