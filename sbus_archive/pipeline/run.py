"""One run: find the hours with new index entries, compute their tables, and publish them.

A run that is killed and repeated gives the same tables. An index entry is known after its hours are published; an hour is always computed
from all of its segments; and what a killed run wrote without publishing it is undone. Spark is started only if there are
tables to compute, or checksums that a cluster verifies.
A run reads the manifests of the hours that it needs, not those of a whole year.

What the runs have seen of an index is one file in the location of the tables. It is replaced after the tables of new segments were
published. A run that is killed before that replaces nothing, so the next run compares these hours with their manifests again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from sbus_archive.pipeline.errors import PipelineError
from sbus_archive.pipeline.plan import ArchiveIndex, HourTask
from sbus_archive.pipeline.progress import Progress, RunTotals
from sbus_archive.pipeline.verification import Damaged, verify_in_threads, verify_with_spark
from sbus_archive.record.index import DayName, IndexListing, hour_of_entry, list_index, read_day
from sbus_archive.record.layout import IndexEntry
from sbus_archive.record.segments import RecordReader
from sbus_archive.storage.files import RecordError, TablesError
from sbus_archive.storage.location import ArchivePath, is_remote
from sbus_archive.storage.store import FileStore, store_of
from sbus_archive.tables.hours import Hour, Manifest
from sbus_archive.tables.publication import TableWriter
from sbus_archive.tables.schema import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KNOWN_INDEX = ".known-index.json"
"""The name of the file."""

_VERSION = 1
_MAX_BYTES = 1 << 30


class KnownIndex:
    """The files of the index that earlier runs have seen."""

    def __init__(self, store: FileStore) -> None:
        """Read the file in *store*, the tables. Raises TablesError: it is damaged; OSError, StorageError."""
        self._store = store
        self.is_new = False
        """Whether the file is missing: in the first run."""
        self._names: frozenset[str] = frozenset()
        self._days: dict[str, str] = {}
        try:
            content = store.read(KNOWN_INDEX, _MAX_BYTES)
        except FileNotFoundError:
            self.is_new = True
            return
        try:
            self._load(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TablesError(store.path(KNOWN_INDEX), f"damaged file: {error}. Remove it: all hours are compared once") from None

    def _load(self, value: Any) -> None:
        """Set the state to *value*. Raises ValueError, KeyError, TypeError, AttributeError."""
        if value["version"] != _VERSION:
            raise ValueError(f"version {value['version']!r}")
        self._names = frozenset(value["names"])
        self._days = dict(value["days"])

    def new_names(self, names: Iterable[str]) -> list[str]:
        """Return those of *names*, files of single entries, that are unknown."""
        return [name for name in names if name not in self._names]

    def changed_days(self, listing: IndexListing) -> list[DayName]:
        """Return the day files of *listing* that are new or were replaced."""
        return [day for day, fingerprint in listing.days.items() if self._days.get(day.file) != fingerprint]

    def save(self, listing: IndexListing, unreadable: Collection[DayName] = ()) -> None:
        """Replace the file, unless nothing has changed; day files that are *unreadable* stay unknown. Raises OSError, StorageError."""
        days = {day.file: fingerprint for day, fingerprint in listing.days.items() if day not in unreadable}
        names = frozenset(listing.names)
        if not self.is_new and (names, days) == (self._names, self._days):
            return
        value = {"version": _VERSION, "names": sorted(names), "days": days}
        self._store.put(KNOWN_INDEX, io.BytesIO(json.dumps(value, separators=(",", ":")).encode()))
        self._names, self._days, self.is_new = names, days, False


CHUNK_ROWS = 16_000_000
"""Number of rows of the record that are computed together: hours share the overhead of jobs, and their rows in Spark do not fill the disk.
On a cluster, each processor beyond the second adds half of it, so that hours are computed in parallel.
"""

SMALL_ROWS = 250_000
"""Number of rows up to which a run is small. Then Spark computes each table in one task, because starting more takes longer."""


class StartSpark(Protocol):
    """Starts Spark; it is stopped at the end of the run."""

    def __call__(self, *, is_small: bool) -> SparkSession:
        """Return the session. Raises PipelineError."""


@dataclass(slots=True)
class PipelineRun:
    """A run of the pipeline from ``archive`` into the tables under ``root``. The caller holds the run lock, if there is one."""

    archive: RecordReader
    root: ArchivePath
    progress: Progress
    start: StartSpark
    rebuild: bool = False
    """Whether hours are computed even without changes."""
    is_on_cluster: bool = False
    """Whether the processes of Spark, instead of this one, read the segments to verify their checksums."""
    totals: RunTotals = field(default_factory=RunTotals)
    _spark: SparkSession | None = None
    _absent: set[str] = field(default_factory=set)
    """Segments that earlier runs have found missing or damaged."""

    def run(self) -> RunTotals:
        """Update the tables; return the totals.

        Raises:
            PipelineError: the tables were made from another archive, or Spark fails.
            RecordError: the index cannot be read.
            TablesError, StorageError, OSError: the location of the tables cannot be used.
        """
        writer = TableWriter(self.root)
        self._check_origin(writer)
        known = KnownIndex(store_of(self.root))
        listing = list_index(self.archive.root)
        self.totals.is_empty = not listing.names and not listing.days
        unreadable: set[DayName] = set()
        if wanted := self._changed_hours(known, listing, unreadable) | writer.incomplete_hours():
            self.make(writer, wanted, listing)
            writer.maintain()
        known.save(listing, unreadable)
        self.totals.absent = len(_absent_in(writer.manifests_of(writer.incomplete_hours())))
        return self.totals

    def _changed_hours(self, known: KnownIndex, listing: IndexListing, unreadable: set[DayName]) -> set[Hour]:
        """Return the hours that index entries name which are new, or were merged; add day files that cannot be read to *unreadable*.

        Single entries are known by their file names only: a partly copied one may have no content yet. The manifest of its hour lists it as
        absent then.
        """
        names = listing.names if self.rebuild else known.new_names(listing.names)
        hours = {Hour(*place) for name in names if (place := hour_of_entry(name)) is not None}
        for day in listing.days if self.rebuild else known.changed_days(listing):
            try:
                entries = read_day(store_of(self.archive.root), day).values()
            except RecordError:
                unreadable.add(day)
                hours |= {Hour(day.date, hour) for hour in range(24)}
                continue
            files = [entry.name.index_name for entry in entries]
            news = files if self.rebuild else known.new_names(files)
            hours |= {Hour(day.date, place[1]) for name in news if (place := hour_of_entry(name)) is not None}
        # A call of the previous hour can have its reply in this one.
        return hours | {hour.preceding for hour in hours}

    def make(self, writer: TableWriter, hours: Iterable[Hour], listing: IndexListing) -> None:
        """Compute and publish those of *hours* that are not up to date."""
        wanted = sorted(set(hours))
        made = writer.manifests_of(wanted)
        self.progress.step(f"{len(wanted)} hours changed: reading the index")
        self._absent = _absent_in(made)
        index = ArchiveIndex(self.archive, self.progress, self._verify, wanted, listing)
        tasks = index.tasks(wanted, made, rebuild=self.rebuild)
        self.totals.kept += sum(bool(task.manifest.left_out) for task in tasks)
        rows = sum(task.rows for task in tasks if task.tables)
        if any(task.tables for task in tasks):
            self._started(is_small=rows <= SMALL_ROWS)
        for chunk in chunks(tasks, self._chunk_rows()):
            self._publish(writer, chunk, self._spark)

    def _started(self, *, is_small: bool) -> SparkSession:
        """Return the session, and start it before if necessary. Raises PipelineError."""
        if self._spark is None:
            self.progress.step("starting Spark")
            self._spark = self.start(is_small=is_small)
        return self._spark

    def _verify(self, entries: Sequence[IndexEntry]) -> Damaged:
        """Compare the segments of *entries* with their checksums. Raises PipelineError."""
        # Spark is not started in each run for a segment that never arrives, or that stays damaged.
        reads_here = not self.is_on_cluster or is_remote(self.archive.root)
        there = [] if reads_here else [entry for entry in entries if entry.path not in self._absent and self.archive.exists(entry)]
        left = {entry.path for entry in there}
        damaged = verify_in_threads(self.archive, [entry for entry in entries if entry.path not in left])
        return {**damaged, **verify_with_spark(self._started(is_small=False), self.archive, there)} if there else damaged

    def _chunk_rows(self) -> int:
        """Return the number of rows to compute together."""
        if not self.is_on_cluster or self._spark is None:
            return CHUNK_ROWS
        return CHUNK_ROWS * max(2, self._spark.sparkContext.defaultParallelism) // 2

    def _check_origin(self, writer: TableWriter) -> None:
        """Store the origin of the tables: rows of two archives must not be mixed. Raises PipelineError if it is another archive, or another
        version."""
        origin, known = {"archive": str(self.archive.root.resolve()), "version": VERSION}, writer.origin
        if isinstance(known, dict) and not self.rebuild and known != origin:
            raise PipelineError(
                f"{self.root}: the tables were made from {known.get('archive')}, version {known.get('version')}. Use --rebuild"
            )
        writer.store_origin(origin)

    def _publish(self, writer: TableWriter, chunk: Sequence[HourTask], spark: SparkSession | None) -> None:
        """Compute and publish the hours of *chunk*, which need the same tables; without tables, only their manifests."""
        if spark is not None and (names := chunk[0].tables):
            # It needs PySpark, an optional package, and is slow to import.
            from sbus_archive.pipeline.computation import Computation  # noqa: PLC0415

            writer.prepare()
            Computation(spark, self.archive, chunk, writer, self.progress, self.totals).write(names)
        writer.publish([task.manifest for task in chunk])


def _absent_in(made: Mapping[Hour, Manifest]) -> set[str]:
    """Return what the manifests in *made* list as missing or damaged."""
    return {path for manifest in made.values() for path in manifest.absent}


def chunks(tasks: Iterable[HourTask], most_rows: int) -> list[list[HourTask]]:
    """Return *tasks* in groups with the same tables and at most *most_rows* rows (or a single task), ordered by hour."""
    found: list[list[HourTask]] = []
    by_tables: dict[tuple[str, ...], list[HourTask]] = {}
    for task in tasks:
        by_tables.setdefault(task.tables, []).append(task)
    for group in by_tables.values():
        chunk: list[HourTask] = []
        rows = 0
        for task in sorted(group, key=lambda task: task.manifest.hour):
            if chunk and rows + task.rows > most_rows:
                found.append(chunk)
                chunk, rows = [], 0
            chunk.append(task)
            rows += task.rows
        found.append(chunk)
    return found
