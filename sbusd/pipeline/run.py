"""One run: find the hours with new index entries, compute their tables, and publish them.

A run that is killed and repeated gives the same tables. An index entry is known after its hours are published; an hour is always computed
from all of its segments; and what a killed run wrote without publishing it is undone first.
Spark is started only if there are tables to compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sbusd.archive.record.index import entry_names, hour_of_entry
from sbusd.archive.record.segments import RecordReader
from sbusd.archive.tables.hours import Hour, Manifest
from sbusd.archive.tables.location import Location
from sbusd.archive.tables.old_layout import remove_old_tables
from sbusd.archive.tables.publication import TableWriter
from sbusd.archive.tables.schema import VERSION
from sbusd.pipeline.errors import PipelineError
from sbusd.pipeline.known_entries import KnownEntries
from sbusd.pipeline.plan import ArchiveIndex, HourTask
from sbusd.pipeline.progress import Progress, RunTotals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHUNK_ROWS = 4_000_000
"""Number of rows that are computed together: small hours share the overhead of a job, and large ones do not exhaust the memory."""

SMALL_ROWS = 250_000
"""Number of rows up to which a run is small. Then Spark computes each table in one task, because starting more takes longer."""


class StartSpark(Protocol):
    """Starts Spark; it is stopped at the end of the run."""

    def __call__(self, *, is_small: bool) -> SparkSession:
        """Return the session. Raises PipelineError."""


@dataclass(slots=True)
class PipelineRun:
    """A run of the pipeline from ``archive`` into the tables under ``root``. The caller holds the run lock."""

    archive: RecordReader
    root: Location
    progress: Progress
    start: StartSpark
    rebuild: bool = False
    """Whether hours are computed even without changes."""
    totals: RunTotals = field(default_factory=RunTotals)

    def run(self) -> RunTotals:
        """Update the tables; return the totals.

        Raises:
            PipelineError: the tables were made from another archive, or Spark fails.
            RecordError: the index cannot be read.
            TablesError, OSError: the directory of the tables cannot be used.
        """
        if self.rebuild and isinstance(self.root, Path):
            remove_old_tables(self.root)
        writer = TableWriter(self.root)
        self._check_origin(writer)
        known = KnownEntries(self.root)
        if self.rebuild:
            known.forget()
        # By file name only: a partly copied entry may have no content yet. The manifest of its hour lists it as absent then.
        names = entry_names(self.archive.root)
        self.totals.is_empty = not names
        new = [name for name in known.new_among(names) if hour_of_entry(name) is not None]
        made = writer.manifests()
        if wanted := _hours_of(new) | {hour for hour, manifest in made.items() if manifest.absent}:
            self.make(writer, wanted, made)
            made = writer.manifests()
            writer.maintain()
        known.add(new)
        self.totals.absent = len({path for manifest in made.values() for path in manifest.absent})
        return self.totals

    def make(self, writer: TableWriter, hours: Iterable[Hour], made: dict[Hour, Manifest]) -> None:
        """Compute and publish those of *hours* that are not up to date; *made* has the manifests of computed hours."""
        wanted = sorted(set(hours))
        self.progress.step(f"{len(wanted)} hours changed: reading the index")
        index = ArchiveIndex(self.archive, self.progress)
        tasks = [task for hour in wanted if (task := index.task(hour, made.get(hour), rebuild=self.rebuild)) is not None]
        self.totals.kept += sum(bool(task.manifest.left_out) for task in tasks)
        rows = sum(task.rows for task in tasks if task.tables)
        spark: SparkSession | None = None
        for chunk in chunks(tasks):
            if chunk[0].tables and spark is None:
                self.progress.step("starting Spark")
                spark = self.start(is_small=rows <= SMALL_ROWS)
            self._publish(writer, chunk, spark)

    def _check_origin(self, writer: TableWriter) -> None:
        """Store the origin of the tables: rows of two archives must not be mixed. Raises PipelineError if it is another archive, or
        another version."""
        origin, known = {"archive": str(self.archive.root.resolve()), "version": VERSION}, writer.origin
        if isinstance(known, dict) and known != origin and not self.rebuild:
            raise PipelineError(
                f"{self.root}: the tables were made from {known.get('archive')}, version {known.get('version')}. Use --rebuild"
            )
        writer.store_origin(origin)

    def _publish(self, writer: TableWriter, chunk: Sequence[HourTask], spark: SparkSession | None) -> None:
        """Compute and publish the hours of *chunk*, which need the same tables; without tables, only their manifests."""
        if spark is not None and (names := chunk[0].tables):
            # It needs PySpark, an optional package, and is slow to import.
            from sbusd.pipeline.computation import Computation  # noqa: PLC0415

            Computation(spark, self.archive, chunk, writer, self.progress, self.totals).write(names)
        writer.publish([task.manifest for task in chunk])


def _hours_of(names: Iterable[str]) -> set[Hour]:
    """Return the hours of the index entries *names*, and the hours before: a call of the previous hour can have its reply in this one."""
    named = {Hour(*place) for name in names if (place := hour_of_entry(name)) is not None}
    return named | {hour.preceding for hour in named}


def chunks(tasks: Iterable[HourTask]) -> list[list[HourTask]]:
    """Return *tasks* in groups with the same tables and at most :data:`CHUNK_ROWS` rows (or a single task), ordered by hour."""
    found: list[list[HourTask]] = []
    by_tables: dict[tuple[str, ...], list[HourTask]] = {}
    for task in tasks:
        by_tables.setdefault(task.tables, []).append(task)
    for group in by_tables.values():
        chunk: list[HourTask] = []
        rows = 0
        for task in sorted(group, key=lambda task: task.manifest.hour):
            if chunk and rows + task.rows > CHUNK_ROWS:
                found.append(chunk)
                chunk, rows = [], 0
            chunk.append(task)
            rows += task.rows
        found.append(chunk)
    return found
