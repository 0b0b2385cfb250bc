"""Files of past days are merged, files that no reader needs are removed after a day, and the log stays short."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sbusd.archive.tables import maintenance
from sbusd.archive.tables.delta import LOG
from sbusd.archive.tables.hours import Hour
from sbusd.archive.tables.maintenance import is_due
from sbusd.archive.tables.publication import TableWriter
from sbusd.archive.tables.storage import read_tables
from tests.support.table_versions import HOUR, publish_version

DAY = 86_400


def test_a_table_is_due_once_in_a_number_of_commits() -> None:
    assert [is_due(before, before + 1) for before in range(17)] == [*[False] * 15, True, False]
    assert is_due(3, 40)


def files(root: Path, day: Hour) -> list[Path]:
    """Return the files of a day in the table of users."""
    return list((root / "users" / f"date={day.date}").glob("*.parquet"))


def test_files_of_past_days_are_merged_and_old_ones_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "COMMITS", 8)
    days = [replace(HOUR, date=f"2026-11-{day}") for day in (20, 21, 22)]
    for number in range(1, 9):
        for day in days:
            publish_version(tmp_path, number, (replace(day, hour=number),))
    before = read_tables(tmp_path)
    assert before.tables["users"].column("lost").to_pylist() == [*range(1, 9)] * 3
    writer = TableWriter(tmp_path)
    current = {Path(path).name for path in writer._tables["users"].file_uris()}
    assert len([path for path in files(tmp_path, days[0]) if path.name in current]) < 8
    assert len([path for path in files(tmp_path, days[2]) if path.name in current]) == 8
    # What readers of a day ago need is kept, until it is older.
    assert len(files(tmp_path, days[0])) > 8
    orphan = tmp_path / "users" / f"date={days[0].date}" / "part-orphan.parquet"
    orphan.write_bytes(b"of a killed run")
    old = time.time() - 2 * DAY
    os.utime(orphan, (old, old))
    monkeypatch.setattr(maintenance, "RETENTION_HOURS", 24)
    maintenance.maintain(writer._tables["users"])
    writer.publish([])
    assert not orphan.exists()
    assert len(files(tmp_path, days[0])) > 8
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
