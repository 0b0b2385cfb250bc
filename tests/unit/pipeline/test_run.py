"""Which hours are computed together."""

from __future__ import annotations

import io
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from sbusd.archive.record.index import IndexEntry
from sbusd.archive.record.layout import HOUR_NS, SegmentName
from sbusd.archive.record.segments import RecordReader
from sbusd.archive.tables.hours import Hour, Manifest, read_manifests
from sbusd.archive.tables.storage import prepare_folder
from sbusd.pipeline import run
from sbusd.pipeline.plan import HourTask
from sbusd.pipeline.progress import Progress
from sbusd.pipeline.run import PipelineRun, chunks
from tests.support.records import NOON, message
from tests.support.traffic import deliver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def task(hour: int, rows: int, *tables: str) -> HourTask:
    """Return what to do about an hour whose segments have this number of *rows*; one without rows has no segment that can be read."""
    at = NOON + hour * HOUR_NS
    name = SegmentName.at(at, "alpha", 1)
    entry = IndexEntry(name.path, name.date, name.hour, "alpha", rows, 1, "", at, at, 1, 1)
    return HourTask(Manifest(Hour.at(at), NOON, (entry,) * bool(rows), (), (), ()), tables)


EMPTY = task(0, 0)
"""An hour of which there is nothing but a damaged index entry."""


def test_an_hour_without_rows_is_a_chunk_of_its_own() -> None:
    assert chunks([]) == []
    assert chunks([EMPTY]) == [[EMPTY]]


@pytest.mark.parametrize("tasks", list(permutations([EMPTY, task(1, 5, "calls"), task(2, 5, "calls", "users"), task(3, 0)])))
def test_hours_of_other_tables_are_in_other_chunks(tasks: tuple[HourTask, ...]) -> None:
    """Only the first hour of a chunk says which tables are computed."""
    found = chunks(tasks)
    assert [len({each.tables for each in chunk}) for chunk in found] == [1] * 3
    assert sorted(str(each) for chunk in found for each in chunk) == sorted(map(str, tasks))
    assert [EMPTY, task(3, 0)] in found


def test_a_chunk_has_a_bounded_number_of_rows_or_one_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CHUNK_ROWS", 10)
    tasks = [task(hour, rows, "calls") for hour, rows in enumerate([0, 6, 4, 0, 1, 11, 0, 12])]
    assert [[each.rows for each in chunk] for chunk in chunks(reversed(tasks))] == [[0, 6, 4, 0], [1], [11], [0], [12]]


def test_an_hour_of_which_only_a_damaged_entry_is_there_is_published_as_missing(tmp_path: Path) -> None:
    """Nothing of it is computed, so that this needs no Spark."""
    archive, root = tmp_path / "archive", tmp_path / "tables"
    (entry,) = deliver(archive, "alpha", [message(1)])
    (archive / entry.name.index_path).write_bytes(b"{")
    root.mkdir()
    prepare_folder(root)
    PipelineRun(cast("SparkSession", None), RecordReader(archive), root, Progress(errors=io.StringIO())).make([Hour.at(NOON)])
    assert read_manifests(root)[Hour.at(NOON)].absent == (str(entry.name.index_path),)
