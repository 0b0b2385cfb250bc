"""One run: find changed hours with a stream over the index, compute their tables, and publish them.

A run that is killed and repeated gives the same tables. The stream commits an entry after its hours are published; an hour is always
computed from all of its segments; and an interrupted publication is finished first.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation names it

from sbusd.archive.files import TablesError, publish_file
from sbusd.archive.record.index import hour_of_entry
from sbusd.archive.record.layout import INDEX
from sbusd.archive.record.segments import RecordReader
from sbusd.archive.tables.hours import Hour, manifest_path, read_manifest, read_manifests
from sbusd.archive.tables.schema import CALLS, LINKS, TABLES, VERSION, Table
from sbusd.archive.tables.storage import STAGING, Part, prepare_folder, publish, write_empty
from sbusd.pipeline.errors import PipelineError, root_cause
from sbusd.pipeline.lock import engine_lock
from sbusd.pipeline.measures import aggregates, calls, flows, links
from sbusd.pipeline.measures.records import read_records
from sbusd.pipeline.plan import ArchiveIndex, HourTask
from sbusd.pipeline.progress import Progress, RunTotals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINT = ".checkpoint"
ORIGIN = "origin.json"
"""Names the archive that the tables were computed from: rows of two archives must not be mixed."""

CHUNK_ROWS = 4_000_000
"""Number of rows that are computed together: small hours share the overhead of a job, and large ones do not exhaust the memory."""

_FILES_DDL = "path string, modificationTime timestamp, length bigint, content binary"
"""The columns of Spark for files; the content is not read here."""

_HOUR_OF_FILE = r"/(\d{4}-\d\d-\d\d)T(\d\d)\.[^/]*$"

_MEASURES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "traffic": aggregates.traffic,
    "users": aggregates.users,
    "flows": flows.compute,
    "losses": aggregates.losses,
    "security": aggregates.security,
    "relay": aggregates.relay,
}


@dataclass(slots=True)
class PipelineRun:
    """A run of the pipeline from ``archive`` into the tables under ``root``. The caller holds the run lock."""

    spark: SparkSession
    archive: RecordReader
    root: Path
    progress: Progress
    rebuild: bool = False
    """Whether hours are computed even without changes."""
    totals: RunTotals = field(default_factory=RunTotals)
    _done: set[Hour] = field(default_factory=set)
    _chunks: int = 0

    def run(self) -> RunTotals:
        """Update the tables; return the totals.

        Raises:
            PipelineError: the tables were made from another archive, or Spark fails.
            TablesError, OSError: the directory of the tables cannot be used.
        """
        with engine_lock(self.spark, self.root):
            prepare_folder(self.root)
            self._check_origin()
            if self.rebuild:
                shutil.rmtree(self.root / CHECKPOINT, ignore_errors=True)
            self._follow_index()
            self.make(hour for hour, manifest in read_manifests(self.root).items() if manifest.absent)
            self.totals.absent = len({path for manifest in read_manifests(self.root).values() for path in manifest.absent})
        return self.totals

    def make(self, hours: Iterable[Hour]) -> None:
        """Compute and publish those of *hours* that are not up to date."""
        wanted = sorted(set(hours))
        if not wanted:
            return
        self.progress.step(f"{len(wanted)} hours changed: reading the index")
        index = ArchiveIndex(self.archive, self.progress)
        tasks = [task for hour in wanted if (task := self._task(index, hour)) is not None]
        for chunk in chunks(tasks):
            self._compute(chunk)

    def _task(self, index: ArchiveIndex, hour: Hour) -> HourTask | None:
        """Return the task for *hour*, None if it is up to date."""
        path = manifest_path(self.root, hour)
        made = read_manifest(path) if path.exists() else None
        task = index.task(hour, made, rebuild=self.rebuild and hour not in self._done)
        self.totals.kept += task is not None and bool(task.manifest.left_out)
        return task

    def _check_origin(self) -> None:
        """Store the origin of the tables. Raises PipelineError if it is another archive, or another version."""
        path, origin = self.root / ORIGIN, {"archive": str(self.archive.root.resolve()), "version": VERSION}
        if self.rebuild or not path.exists():
            publish_file(path, json.dumps(origin).encode())
            return
        try:
            known = json.loads(path.read_bytes())
        except ValueError:
            raise TablesError(path, "damaged file. Run sbus-pipeline --rebuild") from None
        if known != origin:
            raise PipelineError(
                f"{self.root}: the tables were made from {known.get('archive')}, version {known.get('version')}. Use --rebuild"
            )

    def _follow_index(self) -> None:
        """Compute the hours of all index entries that no run has seen."""
        failures: list[Exception] = []

        def take(files: DataFrame, _: int) -> None:
            try:
                date, hour = (F.regexp_extract("path", _HOUR_OF_FILE, group) for group in (1, 2))
                rows = files.select(date.alias("date"), hour.alias("hour")).distinct().where("date != ''").collect()
                named = {Hour(*place) for row in rows if (place := hour_of_entry(f"{row.date}T{row.hour}.x.json"))}
                # A call of the previous hour can have its reply in this one.
                self.make(named | {hour.preceding for hour in named})
            except Exception as error:
                failures.append(error)
                raise

        # By file name only: Spark never reads a file again, and a partly copied one may have no content yet.
        stream = self.spark.readStream.format("binaryFile").schema(_FILES_DDL).option("pathGlobFilter", "*.json")
        # The default would ignore entries a week older than the newest, such as those of a host that was offline.
        files = stream.option("maxFileAge", "36500d").load(str(self.archive.root / INDEX))
        writer = files.writeStream.trigger(availableNow=True).option("checkpointLocation", str(self.root / CHECKPOINT))
        try:
            writer.foreachBatch(take).start().awaitTermination()
        except Exception as error:
            if failures:
                raise failures[0] from None
            raise PipelineError(f"Spark failed while reading {self.archive.root / INDEX}: {root_cause(error)}") from error

    def _compute(self, chunk: Sequence[HourTask]) -> None:
        """Compute and publish the hours of *chunk*, which need the same tables."""
        self._chunks += 1
        staging = self.root / STAGING / f"{self._chunks}"
        staging.mkdir()
        hours = [task.manifest.hour for task in chunk]
        names = chunk[0].tables
        if names:
            segments = {entry.path: entry for task in chunk for entry in task.manifest.segments}
            following = {entry.path: entry for task in chunk for entry in task.manifest.following if entry.path not in segments}
            records = read_records(self.spark, self.archive.root, segments.values())
            after = read_records(self.spark, self.archive.root, following.values())
            self.totals.records += sum(entry.rows for entry in segments.values())
            for table in (table for table in TABLES if table.name in names):
                self.progress.step(f"{hours[0]} to {hours[-1]}: {table.name}")
                self._write(table, _rows_of(table, records, after, chunk), staging, hours)
        publish(self.root, staging, [Part(name, hour) for name in names for hour in hours], [task.manifest for task in chunk])
        self._done.update(hours)

    def _write(self, table: Table, rows: DataFrame, staging: Path, hours: Sequence[Hour]) -> None:
        """Write *rows* of one table under *staging*: one sorted file for each of *hours*, empty if the hour has no rows."""
        begun = time.monotonic()
        target = staging / table.name
        columns = [f"cast(`{column.name}` as {column.type.value}) as `{column.name}`" for column in table.columns]
        sorted_rows = (
            rows.selectExpr("date", "hour", *columns).repartition("date", "hour").sortWithinPartitions("date", "hour", *table.keys)
        )
        try:
            sorted_rows.write.partitionBy("date", "hour").option("compression", "zstd").parquet(str(target))
        except Exception as error:
            raise PipelineError(f"Spark failed while writing {target}: {root_cause(error)}") from error
        written = sum(pq.ParquetFile(path).metadata.num_rows for path in target.glob("date=*/hour=*/*.parquet"))
        for hour in hours:
            write_empty(Part(table.name, hour).staged(staging), table)
        self.totals.add(table.name, len(hours), written, time.monotonic() - begun)


def _rows_of(table: Table, records: DataFrame, following: DataFrame, chunk: Sequence[HourTask]) -> DataFrame:
    """Return the rows of *table* for the hours of *chunk*, whose rows of the record are *records*. *following* begins after an hour."""
    if table.name == CALLS.name:
        return calls.compute(records, following)
    if table.name == LINKS.name:
        return links.compute(records, following, {(task.manifest.hour, entry.host) for task in chunk for entry in task.manifest.segments})
    return _MEASURES[table.name](records)


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
