"""Files that no reader needs are removed after a day, and the log stays short."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sbusd.archive.tables import maintenance
from sbusd.archive.tables.data_files import folder_of
from sbusd.archive.tables.delta import LOG
from sbusd.archive.tables.maintenance import is_due
from sbusd.archive.tables.published import open_published
from sbusd.archive.tables.storage import read_tables
from tests.support.table_versions import HOUR, open_writer, publish_version

DAY = 86_400


def test_a_table_is_due_once_in_a_number_of_commits() -> None:
    assert [is_due(before, before + 1) for before in range(17)] == [*[False] * 15, True, False]
    assert is_due(3, 40)


def test_replaced_files_stay_for_a_day_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 9):
        publish_version(tmp_path, number)
    folder = tmp_path / "users" / folder_of(HOUR)
    assert len(list(folder.iterdir())) == 8
    before = read_tables(tmp_path)
    orphan = folder / "part-orphan.parquet"
    orphan.write_bytes(b"of a killed run")
    old = time.time() - 2 * DAY
    os.utime(orphan, (old, old))
    monkeypatch.setattr(maintenance, "COMMITS", 1)
    writer = open_writer(tmp_path)
    writer._begun["users"] -= 1
    writer.maintain()
    assert not orphan.exists()
    # What readers of a day ago need is kept.
    assert len(list(folder.iterdir())) == 8
    assert read_tables(tmp_path).tables == before.tables


def test_the_log_is_shortened_but_published_versions_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "COMMITS", 4)
    publish_version(tmp_path, 1)
    old = time.time() - 3 * DAY
    for number in range(3, 23):
        publish_version(tmp_path, number)
        for path in tmp_path.rglob(f"{LOG}/*"):
            os.utime(path, (old, old))
    logs = {path.name: len(list((path / LOG).glob("*.json"))) for path in tmp_path.iterdir() if (path / LOG).is_dir()}
    assert max(logs.values()) < 20
    assert len(list((tmp_path / "users" / LOG).glob("*.checkpoint.parquet"))) >= 1
    assert read_tables(tmp_path).tables["users"].column("lost").to_pylist() == [22, 22]


def test_a_reader_with_a_snapshot_survives_maintenance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opened the published hours before; the versions recorded there can be read for a day."""
    monkeypatch.setattr(maintenance, "COMMITS", 2)
    publish_version(tmp_path, 1)
    reader = open_published(tmp_path)
    for number in range(3, 13):
        publish_version(tmp_path, number)
    monkeypatch.setattr("sbusd.archive.tables.storage.open_published", lambda _root: reader)
    found = read_tables(tmp_path)
    assert found.tables["users"].column("lost").to_pylist() == [1, 1]
    assert {manifest.made for manifest in found.manifests.values()} == {1}
