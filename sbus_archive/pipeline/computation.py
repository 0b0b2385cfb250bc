"""Computes the tables of some hours with Spark, and replaces these hours in the Delta tables, where they are not visible until published.

Tables that cannot have rows are written without Spark. In a small run each other table is one job with one task.

In a directory, Spark writes them itself; all its machines see the directory under the same path. Spark has no client for object stores, so
there the Python processes of its executors write the objects, with the credentials in their own environment.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sbus_archive.pipeline import measures
from sbus_archive.pipeline.errors import PipelineError, root_cause
from sbus_archive.pipeline.measures import is_single, spread, stored
from sbus_archive.pipeline.partials.source import TableRows, read_rows_of
from sbus_archive.pipeline.plan import HourTask
from sbus_archive.pipeline.progress import Progress, RunTotals
from sbus_archive.pipeline.session import is_local
from sbus_archive.record.segments import RecordReader
from sbus_archive.storage.location import ArchivePath
from sbus_archive.storage.store import store_of
from sbus_archive.tables.data_files import DataFile, adopt, new_staging, write_rows
from sbus_archive.tables.hours import Hour
from sbus_archive.tables.publication import TableWriter
from sbus_archive.tables.schema import CALLS, LINKS, RELAY, TABLES, Table, Type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 1 << 14
"""Number of rows that are converted at once."""


def write_table(root: ArchivePath, table: Table, rows: DataFrame) -> list[DataFile]:
    """Write *rows* of *table* under *root* into sorted files, one for each hour that has rows, and return them. They are not committed.

    Raises:
        PipelineError: Spark fails.
        OSError: a file cannot be read or moved.
    """
    placed = spread(rows, "date", "hour").sortWithinPartitions("date", "hour", *table.keys)
    return _in_folder(root, table, placed) if isinstance(root, Path) else _in_store(root, table, placed)


def _in_folder(root: Path, table: Table, rows: DataFrame) -> list[DataFile]:
    """Let Spark write *rows* of *table* into a directory that no reader searches, and move the files into the table."""
    columns = [f"cast(`{column.name}` as {column.type.value}) as `{column.name}`" for column in table.columns]
    staging = new_staging(root, table.name)
    try:
        rows.selectExpr("date", "hour", *columns).write.partitionBy("date", "hour").option("compression", "zstd").parquet(str(staging))
    except Exception as error:
        raise PipelineError(f"Spark failed while writing {staging}: {root_cause(error)}") from error
    return adopt(root, table.name, staging)


def _in_store(root: ArchivePath, table: Table, rows: DataFrame) -> list[DataFile]:
    """Let the executors write *rows* of *table* into objects. A task that is repeated writes new ones; the others are never committed."""
    # Microseconds: a time as an object of Python would depend on the time zone of the process.
    columns = [
        f"unix_micros(`{column.name}`) as `{column.name}`"
        if column.type is Type.TIME
        else f"cast(`{column.name}` as {column.type.value}) as `{column.name}`"
        for column in table.columns
    ]
    chosen = rows.selectExpr(*columns, "cast(date as string) as date", "cast(hour as int) as hour")
    try:
        found: list[DataFile] = chosen.rdd.mapPartitions(functools.partial(_write_partition, root, table.name)).collect()
    except Exception as error:
        raise PipelineError(f"Spark failed while writing {root}/{table.name}: {root_cause(error)}") from error
    return found


def _write_partition(root: ArchivePath, name: str, rows: Iterable[Any]) -> Iterator[DataFile]:
    """Write the rows of one partition, in an executor."""
    (table,) = (table for table in TABLES if table.name == name)
    schema = table.arrow_schema()
    yield from write_rows(store_of(root), name, schema, _batches(rows, schema))


def _batches(rows: Iterable[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return *rows* in batches."""
    found = iter(rows)
    while some := list(itertools.islice(found, BATCH_ROWS)):
        columns = zip(*some, strict=True)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )


@dataclass(frozen=True, slots=True)
class Computation:
    """The tables of ``hours``, from ``archive`` to ``writer``, which is prepared."""

    spark: SparkSession
    archive: RecordReader
    hours: Sequence[HourTask]
    writer: TableWriter
    progress: Progress
    totals: RunTotals

    def write(self, names: Sequence[str]) -> None:
        """Write the tables *names*: for each hour with rows one sorted file.

        Raises:
            PipelineError: Spark fails.
            RecordError: a segment cannot be read.
            TablesError, OSError: a table cannot be written.
        """
        self.totals.records += sum({entry.path: entry.rows for task in self.hours for entry in task.manifest.segments}.values())
        tables = [table for table in TABLES if table.name in names]
        for table in tables:
            self.totals.add(table.name, 0, 0, 0.0)  # in this order
        if is_single(self.spark):
            for table in tables:
                self._write(table)
            return
        try:
            self._write_large(tables)
        finally:
            # Of the rows that measures have stored. A Java process that has gone has none, and the error that says so must remain.
            with contextlib.suppress(Exception):
                self.spark.catalog.clearCache()

    def _write_large(self, tables: Sequence[Table]) -> None:
        """Write *tables*: on a cluster all at the same time, each in a pool of Spark's scheduler, else one by one."""
        context = self.spark.sparkContext

        def write_in_pool(table: Table) -> None:
            context.setLocalProperty("spark.scheduler.pool", table.name)
            self._write(table)

        if is_local(context.master):
            for table in tables:
                self._write(table)
            return
        with ThreadPoolExecutor(max(1, len(tables)), "table") as threads:
            for done in [threads.submit(write_in_pool, table) for table in tables]:
                done.result()

    def _write(self, table: Table) -> None:
        """Compute and write one table."""
        begun = time.monotonic()
        self.progress.step(f"{self._places[0]} to {self._places[-1]}: {table.name}")
        manifests = [task.manifest for task in self.hours]
        found = read_rows_of(self.spark, self.archive.root, table.name, manifests, is_small=is_single(self.spark))
        rows = self._rows_of(table, found)
        self._replace(table, [] if rows is None else write_table(self.writer.root, table, rows), begun)

    def _rows_of(self, table: Table, found: TableRows) -> DataFrame | None:
        """Return the rows of *table*, None if there are none."""
        complete = found.complete
        partial = None if found.partial is None else self._added_up(table, found.partial)
        rows = complete.unionByName(partial) if complete is not None and partial is not None else complete or partial
        return measures.with_percentiles(rows) if rows is not None and table.name == CALLS.name else rows

    def _added_up(self, table: Table, partial: DataFrame) -> DataFrame | None:
        """Return the rows of *table* that Spark computes from partial rows."""
        if table.name == LINKS.name:
            partial = stored(partial)
            # Most hosts have no link, and the computation is long.
            if not is_single(self.spark) and not partial.count():
                return None
            hours = {(task.manifest.hour, entry.host) for task in self.hours for entry in task.manifest.segments}
            return measures.link_differences(partial, hours)
        if table.name == CALLS.name:
            return measures.call_histograms(partial)
        return measures.relay_sums(partial) if table.name == RELAY.name else measures.added_up(partial, table)

    def _replace(self, table: Table, files: Sequence[DataFile], begun: float) -> None:
        """Replace the hours of *table* by *files*, and count what was written since *begun*."""
        self.writer.replace(table.name, self._places, files)
        self.totals.add(table.name, len(self._places), sum(file.rows for file in files), time.monotonic() - begun)

    @property
    def _places(self) -> list[Hour]:
        """The hours, in order."""
        return [task.manifest.hour for task in self.hours]
