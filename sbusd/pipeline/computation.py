"""Computes the tables of some hours with Spark, and replaces these hours in the Delta tables, where they are not visible until published.

Tables that cannot have rows are written without Spark. In a small run each other table is one job with one task.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbusd.archive.record.segments import RecordReader
from sbusd.archive.tables.data_files import DataFile
from sbusd.archive.tables.hours import Hour
from sbusd.archive.tables.publication import TableWriter
from sbusd.archive.tables.schema import CALLS, LINKS, RELAY, TABLES, Table
from sbusd.pipeline.measures import aggregates, calls, links
from sbusd.pipeline.measures.folding import is_single, stored
from sbusd.pipeline.partials.source import TableRows, read_rows_of
from sbusd.pipeline.plan import HourTask
from sbusd.pipeline.progress import Progress, RunTotals
from sbusd.pipeline.session import is_local
from sbusd.pipeline.table_files import write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        return calls.with_percentiles(rows) if rows is not None and table.name == CALLS.name else rows

    def _added_up(self, table: Table, partial: DataFrame) -> DataFrame | None:
        """Return the rows of *table* that Spark computes from partial rows."""
        if table.name == LINKS.name:
            partial = stored(partial)
            # Most hosts have no link, and the computation is long.
            if not is_single(self.spark) and not partial.count():
                return None
            hours = {(task.manifest.hour, entry.host) for task in self.hours for entry in task.manifest.segments}
            return links.compute(partial, hours)
        if table.name == CALLS.name:
            return calls.histograms(partial)
        return aggregates.relay(partial) if table.name == RELAY.name else aggregates.added_up(partial, table)

    def _replace(self, table: Table, files: Sequence[DataFile], begun: float) -> None:
        """Replace the hours of *table* by *files*, and count what was written since *begun*."""
        self.writer.replace(table.name, self._places, files)
        self.totals.add(table.name, len(self._places), sum(file.rows for file in files), time.monotonic() - begun)

    @property
    def _places(self) -> list[Hour]:
        """The hours, in order."""
        return [task.manifest.hour for task in self.hours]
