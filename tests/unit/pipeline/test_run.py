"""Which hours are computed, which of them together, and when Spark is started."""

from __future__ import annotations

import io
import sys
from itertools import permutations
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from sbusd.archive.record.index import IndexEntry
from sbusd.archive.record.layout import HOUR_NS, SegmentName
from sbusd.archive.record.segments import RecordReader
from sbusd.archive.tables.hours import Hour, Manifest
from sbusd.archive.tables.publication import TableWriter
from sbusd.archive.tables.storage import read_manifests
from sbusd.pipeline import run
from sbusd.pipeline.known_entries import KnownEntries
from sbusd.pipeline.plan import HourTask
from sbusd.pipeline.progress import Progress
from sbusd.pipeline.run import PipelineRun, chunks
from tests.support.records import NOON, message
from tests.support.traffic import deliver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Killed(BaseException):
    """Ends a run at a chosen point, as a signal does: nothing handles it."""


class Runs:
    """Runs over one archive, with a computation that writes no rows and needs no Spark."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.archive, self.root = folder / "archive", folder / "tables"
        self.computed: list[list[str]] = []
        """The hours of each chunk that was computed, with the first table."""
        self.starts: list[bool] = []
        """For each start of Spark, whether the run was small."""
        self.patch = patch
        patch.setitem(sys.modules, "sbusd.pipeline.computation", cast("ModuleType", SimpleNamespace(Computation=self._computation)))

    def _computation(self, _spark: object, _archive: object, hours: list[HourTask], writer: TableWriter, *_more: object) -> SimpleNamespace:
        def write(names: tuple[str, ...]) -> None:
            self.computed.append([f"{each.manifest.hour}:{names[0]}" for each in hours])
            for name in names:
                writer.replace(name, [each.manifest.hour for each in hours], [])

        return SimpleNamespace(write=write)

    def _start(self, *, is_small: bool) -> SparkSession:
        self.starts.append(is_small)
        return cast("SparkSession", object())

    def run(self, *, rebuild: bool = False) -> list[list[str]]:
        """Run once; return what was computed."""
        self.computed.clear()
        PipelineRun(RecordReader(self.archive), self.root, Progress(errors=io.StringIO()), self._start, rebuild=rebuild).run()
        return [*self.computed]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(tmp_path, monkeypatch)


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


def test_an_hour_of_which_only_a_damaged_entry_is_there_is_published_as_missing(runs: Runs) -> None:
    (entry,) = deliver(runs.archive, "alpha", [message(1)])
    (runs.archive / entry.name.index_path).write_bytes(b"{")
    assert runs.run() == []
    assert read_manifests(runs.root)[Hour.at(NOON)].absent == (str(entry.name.index_path),)
    assert runs.starts == []


def test_without_news_spark_is_not_started(runs: Runs) -> None:
    deliver(runs.archive, "alpha", [message(1)])
    assert runs.run() == [["2026-11-20T12:traffic"]]
    assert runs.starts == [True]
    assert runs.run() == runs.run() == []
    assert runs.starts == [True]
    assert runs.run(rebuild=True) == [["2026-11-20T12:traffic"]]


def test_a_run_over_many_rows_is_not_small(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SMALL_ROWS", 1)
    deliver(runs.archive, "alpha", [message(1), message(2)])
    runs.run()
    assert runs.starts == [False]


def test_an_archive_without_segments_is_empty(runs: Runs) -> None:
    (runs.archive / "index").mkdir(parents=True)
    assert runs.run() == []
    totals = PipelineRun(RecordReader(runs.archive), runs.root, Progress(), runs._start).run()
    assert totals.lines()[0].startswith("nothing to compute: the archive has no segments yet.")


def test_a_run_that_was_killed_after_publication_is_not_repeated(runs: Runs) -> None:
    """The entries are not known yet, but the manifests show that the hours are up to date."""
    deliver(runs.archive, "alpha", [message(1)])

    def kill(*_names: object) -> None:
        raise Killed

    with runs.patch.context() as patch:
        patch.setattr(KnownEntries, "add", kill)
        with pytest.raises(Killed):
            runs.run()
    assert runs.run() == []
    assert len(read_manifests(runs.root)) == 1


def test_a_run_that_was_killed_between_two_publications_is_completed(runs: Runs) -> None:
    """A new segment changes two hours: all tables of its own, and the calls of the hour before."""
    deliver(runs.archive, "alpha", [message(1)])
    runs.run()
    deliver(runs.archive, "alpha", [message(2, ts=NOON + HOUR_NS + 10**9)])
    with runs.patch.context() as patch:
        published: list[object] = []
        publish = TableWriter.publish

        def publish_one(writer: TableWriter, manifests: list[Manifest]) -> None:
            if published:
                raise Killed
            publish(writer, manifests)
            published.append(writer)

        patch.setattr(TableWriter, "publish", publish_one)
        with pytest.raises(Killed):
            runs.run()
    assert len(runs.computed) == 2
    first, second = runs.computed
    assert runs.run() == [second]
    assert runs.run() == []
    assert {*first, *second} == {"2026-11-20T12:calls", "2026-11-20T13:traffic"}
