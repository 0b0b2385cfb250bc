"""Which hours are computed, which of them together, and when Spark is started."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from sbus_archive.pipeline import run
from sbus_archive.pipeline.errors import PipelineError
from sbus_archive.pipeline.plan import HourTask
from sbus_archive.pipeline.progress import Progress
from sbus_archive.pipeline.run import KNOWN_INDEX, KnownIndex, PipelineRun, chunks
from sbus_archive.record.compaction import compact
from sbus_archive.record.index import DayName, IndexListing, list_days, list_index, write_entry
from sbus_archive.record.layout import HOUR_NS, IndexEntry, SegmentName
from sbus_archive.record.segments import RecordReader
from sbus_archive.storage.files import RecordError, TablesError
from sbus_archive.storage.store import LocalStore
from sbus_archive.tables.hours import Hour, Manifest
from sbus_archive.tables.publication import TableWriter
from sbus_archive.tables.schema import TABLES, VERSION
from sbus_archive.tables.storage import read_tables
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
        patch.setitem(sys.modules, "sbus_archive.pipeline.computation", cast("ModuleType", SimpleNamespace(Computation=self._computation)))

    def _computation(self, _spark: object, _archive: object, hours: list[HourTask], *_more: object) -> SimpleNamespace:
        def write(names: tuple[str, ...]) -> None:
            self.computed.append([f"{each.manifest.hour}:{names[0]}" for each in hours])

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
    assert chunks([], 12) == []
    assert chunks([EMPTY], 12) == [[EMPTY]]


@pytest.mark.parametrize("tasks", list(permutations([EMPTY, task(1, 5, "calls"), task(2, 5, "calls", "users"), task(3, 0)])))
def test_hours_of_other_tables_are_in_other_chunks(tasks: tuple[HourTask, ...]) -> None:
    """Only the first hour of a chunk says which tables are computed."""
    found = chunks(tasks, 12)
    assert [len({each.tables for each in chunk}) for chunk in found] == [1] * 3
    assert sorted(str(each) for chunk in found for each in chunk) == sorted(map(str, tasks))
    assert [EMPTY, task(3, 0)] in found


def test_a_chunk_has_a_bounded_number_of_rows_or_one_hour() -> None:
    tasks = [task(hour, rows, "calls") for hour, rows in enumerate([0, 6, 4, 0, 1, 11, 0, 12])]
    assert [[each.rows for each in chunk] for chunk in chunks(reversed(tasks), 10)] == [[0, 6, 4, 0], [1], [11], [0], [12]]


def test_an_hour_of_which_only_a_damaged_entry_is_there_is_published_as_missing(runs: Runs) -> None:
    (entry,) = deliver(runs.archive, "alpha", [message(1)])
    (runs.archive / entry.name.index_path).write_bytes(b"{")
    assert runs.run() == []
    assert read_tables(runs.root).manifests[Hour.at(NOON)].absent == (str(entry.name.index_path),)
    assert runs.starts == []


def test_what_retention_removed_is_not_missing_anymore(runs: Runs) -> None:
    (entry,) = deliver(runs.archive, "alpha", [message(1)])
    path = runs.archive / entry.name.index_path
    path.write_bytes(b"{")
    runs.run()
    path.unlink()
    write_entry(runs.archive, replace(entry, removed_at=NOON))
    runs.run()
    manifest = read_tables(runs.root).manifests[Hour.at(NOON)]
    assert (manifest.absent, manifest.removed) == ((), (entry.path,))


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


@pytest.mark.parametrize(("is_on_cluster", "hours"), [(False, 2), (True, 4)])
def test_a_cluster_computes_more_hours_at_the_same_time(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, is_on_cluster: bool, hours: int
) -> None:
    """Two rows for each two of four processors; segments that are there are verified by Spark, others are named without it."""
    monkeypatch.setattr(run, "CHUNK_ROWS", 2)
    verified: list[str] = []

    def verify(_spark: object, _archive: object, entries: Sequence[IndexEntry]) -> dict[str, RecordError]:
        verified.extend(entry.path for entry in entries)
        return {}

    monkeypatch.setattr(run, "verify_with_spark", verify)
    entries = [deliver(runs.archive, "alpha", [message(hour + 1, ts=NOON + hour * HOUR_NS)])[0] for hour in range(8)]
    (runs.archive / entries[-1].path).unlink()
    session = cast("SparkSession", SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=4)))
    totals = PipelineRun(
        RecordReader(runs.archive), runs.root, Progress(errors=io.StringIO()), lambda *, is_small: session, is_on_cluster=is_on_cluster
    ).run()
    assert max(len(each) for each in runs.computed) == hours
    assert sorted(verified) == (sorted(entry.path for entry in entries[:-1]) if is_on_cluster else [])
    assert totals.absent == 1


def test_tables_of_another_version_are_computed_again_on_request(runs: Runs) -> None:
    deliver(runs.archive, "alpha", [message(1)])
    first = runs.run()
    TableWriter(runs.root).store_origin({"archive": str(runs.archive), "version": VERSION + 1})
    with pytest.raises(PipelineError, match=rf"version {VERSION + 1}\. Use --rebuild"):
        runs.run()
    assert runs.run(rebuild=True) == first
    assert TableWriter(runs.root).origin == {"archive": str(runs.archive), "version": VERSION}


def test_a_run_reads_only_the_manifests_that_it_needs(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """None without news, and those of the hours with new or missing segments otherwise."""
    entries = [deliver(runs.archive, "alpha", [message(hour + 1, ts=NOON + hour * HOUR_NS)])[0] for hour in range(6)]
    segment = runs.archive / entries[4].path
    content = segment.read_bytes()
    segment.unlink()
    runs.run()
    read: list[set[Hour]] = []
    manifests_of = TableWriter.manifests_of

    def recorded(writer: TableWriter, hours: set[Hour]) -> dict[Hour, Manifest]:
        read.append(set(hours))
        return manifests_of(writer, hours)

    monkeypatch.setattr(TableWriter, "manifests_of", recorded)
    missing = {Hour.at(NOON + 4 * HOUR_NS), Hour.at(NOON + 3 * HOUR_NS)}  # its replies may be in the next hour
    runs.run()
    assert {hour for hours in read for hour in hours} <= missing
    segment.write_bytes(content)
    runs.run()
    assert TableWriter(runs.root).incomplete_hours() == set()
    read.clear()
    assert runs.run() == []
    assert read == [set()]


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
        patch.setattr(KnownIndex, "save", kill)
        with pytest.raises(Killed):
            runs.run()
    assert runs.run() == []
    assert len(read_tables(runs.root).manifests) == 1


def test_a_run_that_was_killed_between_two_publications_is_completed(runs: Runs) -> None:
    """A new segment changes two hours: all tables of its own, and the calls of the hour before."""
    deliver(runs.archive, "alpha", [message(1)])
    runs.run()
    deliver(runs.archive, "alpha", [message(2, ts=NOON + HOUR_NS + 10**9)])
    with runs.patch.context() as patch:
        published: list[TableWriter] = []
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


@pytest.mark.parametrize("hour", ["0001-01-01T00", "9999-12-31T23", "2026-13-45T99"])
def test_an_entry_of_an_impossible_hour_does_not_stop_the_others(runs: Runs, hour: str) -> None:
    deliver(runs.archive, "alpha", [message(1)])
    (entry,) = RecordReader(runs.archive).entries()
    name = Path(entry.name.index_path).name.replace(f"{entry.date}T{entry.hour:02}", hour)
    path = entry.path.replace(entry.date, hour[:10]).replace("hour=12", f"hour={hour[11:]}")
    content = entry.to_json().replace(entry.path, path).replace(entry.date, hour[:10]).replace('"hour":12', f'"hour":{int(hour[11:])}')
    (runs.archive / "index" / name).write_text(content)
    assert runs.run() == [[f"{entry.date}T{entry.hour:02}:{TABLES[0].name}"]]


def test_a_run_without_news_reads_one_file_however_long_the_index_is(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a new segment costs the files of its hours, not those of all time."""
    day = 24 * HOUR_NS
    for number in range(12):
        deliver(runs.archive, "alpha", [message(number + 1, ts=NOON + number * day)])
    compact(LocalStore(runs.archive), "alpha", NOON + 8 * day)
    assert len(runs.run()) == 1
    reads: list[str] = []
    read = LocalStore.read

    def noted(store: LocalStore, name: str, limit: int) -> bytes:
        reads.append(name)
        return read(store, name, limit)

    monkeypatch.setattr(LocalStore, "read", noted)
    assert runs.run() == []
    assert reads == [KNOWN_INDEX]
    assert compact(LocalStore(runs.archive), "alpha", NOON + 8 * day).days == 0
    deliver(runs.archive, "alpha", [message(20, ts=NOON + 2 * day)])
    reads.clear()
    assert runs.run() == [[f"{Hour.at(NOON + 2 * day)}:traffic"]]
    # The known index, the new entry, and the day file of its hour, each at most twice.
    days = {name for name in reads if name.endswith(".gz")}
    assert (len(days), len(reads) <= 5) == (1, True), reads
    assert runs.run() == []


def test_a_merged_day_computes_nothing_again_and_a_late_segment_in_it_its_hour(runs: Runs) -> None:
    for number in range(3):
        deliver(runs.archive, "alpha", [message(number + 1, ts=NOON + number * HOUR_NS)])
    assert len(runs.run()) == 1
    compact(LocalStore(runs.archive), "alpha", NOON + 99 * HOUR_NS)
    assert runs.run() == []
    deliver(runs.archive, "alpha", [message(9, ts=NOON + HOUR_NS)])
    compact(LocalStore(runs.archive), "alpha", NOON + 99 * HOUR_NS)
    assert list_index(runs.archive).names == ()
    assert sorted(hour for chunk in runs.run() for hour in chunk) == [f"{Hour.at(NOON)}:calls", f"{Hour.at(NOON + HOUR_NS)}:traffic"]
    assert runs.run() == []
    assert len(runs.run(rebuild=True)[0]) == 3


def test_a_day_file_that_cannot_be_read_is_listed_and_read_later(runs: Runs) -> None:
    deliver(runs.archive, "alpha", [message(1)])
    compact(LocalStore(runs.archive), "alpha", NOON + 99 * HOUR_NS)
    (day,) = list_days(LocalStore(runs.archive))
    content = (runs.archive / day.path).read_bytes()
    (runs.archive / day.path).write_bytes(b"x")
    for _ in range(2):
        assert runs.run() == []
        assert day.path in read_tables(runs.root).manifests[Hour.at(NOON)].absent
    (runs.archive / day.path).write_bytes(content)
    assert runs.run() == [[f"{Hour.at(NOON)}:traffic"]]
    # It was not known which hours the day has: those without rows do not stay in the list of incomplete hours.
    assert not any(manifest.absent for manifest in read_tables(runs.root).manifests.values())


NAMES = ("2026-11-20T12.alpha.00000000000000000001.json", "2026-11-20T12.a\nb\udcff.json", '2026-11-20T13."é\u2028".json')
DAY, NEXT = DayName("2026-11-18", "alpha"), DayName("2026-11-19", "alpha")


def known(folder: Path) -> KnownIndex:
    """Read the file."""
    return KnownIndex(LocalStore(folder))


def test_what_was_saved_is_known(tmp_path: Path) -> None:
    first = known(tmp_path)
    assert (first.is_new, first.new_names(NAMES)) == (True, list(NAMES))
    first.save(IndexListing(NAMES[:2], {DAY: "1"}))
    for each in (first, known(tmp_path)):
        assert (each.is_new, each.new_names(NAMES)) == (False, [NAMES[2]])
        assert each.changed_days(IndexListing((), {DAY: "1", NEXT: "1"})) == [NEXT]
        assert each.changed_days(IndexListing((), {DAY: "2"})) == [DAY]
    assert (tmp_path / KNOWN_INDEX).stat().st_mode & 0o137 == 0


def test_names_that_were_merged_are_forgotten(tmp_path: Path) -> None:
    """The file does not grow with the archive."""
    known(tmp_path).save(IndexListing(NAMES, {}))
    known(tmp_path).save(IndexListing(NAMES[2:], {DAY: "1"}))
    assert known(tmp_path).new_names(NAMES) == list(NAMES[:2])


def test_a_day_file_that_could_not_be_read_stays_unknown(tmp_path: Path) -> None:
    listing = IndexListing((), {DAY: "1", NEXT: "1"})
    known(tmp_path).save(listing, {NEXT})
    assert known(tmp_path).changed_days(listing) == [NEXT]


def test_nothing_is_written_without_news(tmp_path: Path) -> None:
    listing = IndexListing(NAMES, {DAY: "1"})
    known(tmp_path).save(listing)
    before = (tmp_path / KNOWN_INDEX).stat().st_ino
    known(tmp_path).save(listing)
    assert (tmp_path / KNOWN_INDEX).stat().st_ino == before


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version":2}', '{"version":1,"names":[],"days":7}', '{"version":1,"names":[]'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / KNOWN_INDEX).write_text(content)
    with pytest.raises(TablesError, match=r"damaged file.*Remove it: all hours are compared once") as caught:
        known(tmp_path)
    assert KNOWN_INDEX in str(caught.value)
