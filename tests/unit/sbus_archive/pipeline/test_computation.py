"""The rows of a partition become files as they come from Spark; Spark itself is in tests/integration."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from sbus_archive.pipeline import computation
from sbus_archive.pipeline.computation import _write_partition
from sbus_archive.storage.store import LocalStore
from sbus_archive.tables.data_files import read_rows
from sbus_archive.tables.hours import Hour
from sbus_archive.tables.schema import CALLS, LOSSES

DAY = "2026-11-20"


@pytest.mark.parametrize("size", [1, 2, 100])
def test_rows_become_one_file_for_each_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Times are microseconds; a histogram is a list of pairs."""
    monkeypatch.setattr(computation, "BATCH_ROWS", size)
    nothing: list[object] = [None] * (len(CALLS.names) - 2)
    rows = [("alpha", *nothing, [(5, hour)], DAY, hour) for hour in (1, 1, 2)]
    files = list(_write_partition(tmp_path, CALLS.name, rows))
    assert [(file.hour, file.rows) for file in files] == [(Hour(DAY, 1), 2), (Hour(DAY, 2), 1)]
    listed = [(file.path, file.size, file.hour) for file in files]
    found = read_rows(LocalStore(tmp_path), CALLS.name, listed, CALLS.arrow_schema())
    assert found.column("latencies").to_pylist() == [[{"bucket": 5, "calls": hour}] for hour in (1, 1, 2)]


def test_a_time_is_that_of_the_record(tmp_path: Path) -> None:
    moment = datetime.datetime(2026, 11, 20, 7, tzinfo=datetime.UTC)
    rows = [(int(moment.timestamp()) * 1_000_000, "alpha", *[None] * (len(LOSSES.names) - 2), DAY, 7)]
    (file,) = _write_partition(tmp_path, LOSSES.name, rows)
    found = read_rows(LocalStore(tmp_path), LOSSES.name, [(file.path, file.size, file.hour)], LOSSES.arrow_schema())
    assert found.column("minute").to_pylist() == [moment]


def test_an_empty_partition_has_no_file(tmp_path: Path) -> None:
    assert list(_write_partition(tmp_path, CALLS.name, [])) == []
    assert list(tmp_path.iterdir()) == []
