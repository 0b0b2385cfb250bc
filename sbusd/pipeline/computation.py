"""Computes the tables of some hours with Spark, and replaces these hours in the Delta tables, where they are not visible until published.

Tables that cannot have rows are written without Spark, as the index or the segments show. In a small run each other table is one job with
one task.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from sbusd.archive.files import RecordError
from sbusd.archive.record.entry import IndexEntry
from sbusd.archive.record.schema import Kind, Role
from sbusd.archive.record.segments import RecordReader
from sbusd.archive.tables.data_files import DataFile
from sbusd.archive.tables.hours import Hour
from sbusd.archive.tables.publication import TableWriter
from sbusd.archive.tables.schema import CALLS, DISCONNECTS, FLOWS, LINKS, RELAY, SECURITY, TABLES, Table
from sbusd.pipeline.measures import aggregates, calls, flows, links
from sbusd.pipeline.measures.link_states import KEY
from sbusd.pipeline.measures.records import is_single, read_records
from sbusd.pipeline.plan import HourTask
from sbusd.pipeline.progress import Progress, RunTotals
from sbusd.pipeline.session import is_local
from sbusd.pipeline.table_files import write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

THREADS = 2
"""Number of tables that a small run computes at the same time: a task of each uses one processor."""

_MEASURES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "traffic": aggregates.traffic,
    "users": aggregates.users,
    "flows": flows.compute,
    "losses": aggregates.losses,
    "security": aggregates.security,
    "disconnects": aggregates.disconnects,
    "relay": aggregates.relay,
}

_ONLY_KIND = {RELAY.name: Kind.RELAY.value, SECURITY.name: Kind.DENIAL.value, DISCONNECTS.name: Kind.DISCONNECT.value}
"""Tables whose rows come from rows of one kind, which index entries count."""

_IS_MESSAGE = pc.field("kind") == Kind.MESSAGE.value
_NEEDED = {
    CALLS.name: _IS_MESSAGE & (pc.field("call_role") == Role.REQUEST.value),
    LINKS.name: _IS_MESSAGE & (pc.field("key") == KEY),
}
"""Tables that are empty unless some row of the record matches this."""

_SCAN_ROWS = 1 << 16


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
            TablesError, OSError: a table cannot be written.
        """
        read = {entry.path: entry for task in self.hours for entry in task.manifest.segments}
        following = {entry.path: entry for task in self.hours for entry in task.manifest.following if entry.path not in read}
        segments = list(read.values())
        self.totals.records += sum(entry.rows for entry in segments)
        records = read_records(self.spark, self.archive.root, segments)
        # Without a file, Spark removes it from the plan.
        after = read_records(self.spark, self.archive.root, following.values()) if following else records.where("false")
        full = []
        for table in (table for table in TABLES if table.name in names):
            self.totals.add(table.name, 0, 0, 0.0)  # in this order
            if self._is_empty(table, segments, list(following.values())):
                self._replace(table, [], time.monotonic())
            else:
                full.append(table)

        def write(table: Table) -> None:
            self._write(table, self._rows_of(table, records, after))

        if not is_single(self.spark):
            try:
                self._write_large(full, write)
            finally:
                # Of the rows that measures have stored. A Java process that has gone has none, and the error that says so must remain.
                with contextlib.suppress(Exception):
                    self.spark.catalog.clearCache()
            return
        # The longest first.
        full.sort(key=lambda table: table.name != FLOWS.name)
        with ThreadPoolExecutor(THREADS, "table") as threads:
            for done in [threads.submit(write, table) for table in full]:
                done.result()

    def _write_large(self, tables: Sequence[Table], write: Callable[[Table], None]) -> None:
        """Call *write* for each of *tables*: on a cluster all at the same time, each in a pool of Spark's scheduler, else one by one."""
        context = self.spark.sparkContext

        def write_in_pool(table: Table) -> None:
            context.setLocalProperty("spark.scheduler.pool", table.name)
            write(table)

        if is_local(context.master):
            for table in tables:
                write(table)
            return
        with ThreadPoolExecutor(max(1, len(tables)), "table") as threads:
            for done in [threads.submit(write_in_pool, table) for table in tables]:
                done.result()

    def _is_empty(self, table: Table, entries: Sequence[IndexEntry], following: Sequence[IndexEntry]) -> bool:
        """Return whether the record has no rows for *table*. False does not say that it has some."""
        if (kind := _ONLY_KIND.get(table.name)) is not None:
            return all(sum(entry.kinds.values()) == entry.rows and not entry.kinds.get(kind) for entry in entries)
        if (condition := _NEEDED.get(table.name)) is None or not is_single(self.spark):
            return False
        # The first state of a link can be in the next hour.
        searched = [*entries, *following] if table.name == LINKS.name else entries
        try:
            scans = (self.archive.scan(entry, ["seq"], condition, _SCAN_ROWS) for entry in searched)
            return not any(batch.num_rows for scan in scans for batch in scan)
        except RecordError:
            return False  # let Spark report it

    def _rows_of(self, table: Table, records: DataFrame, following: DataFrame) -> DataFrame:
        """Return the rows of *table*, from the rows of the record. *following* begins after an hour."""
        if table.name == CALLS.name:
            return calls.compute(records, following)
        if table.name == LINKS.name:
            hosts = {(task.manifest.hour, entry.host) for task in self.hours for entry in task.manifest.segments}
            return links.compute(records, following, hosts)
        return _MEASURES[table.name](records)

    def _write(self, table: Table, rows: DataFrame) -> None:
        """Write *rows* of one table."""
        begun = time.monotonic()
        self.progress.step(f"{self._places[0]} to {self._places[-1]}: {table.name}")
        self._replace(table, write_table(self.writer.root, table, rows), begun)

    def _replace(self, table: Table, files: Sequence[DataFile], begun: float) -> None:
        """Replace the hours of *table* by *files*, and count what was written since *begun*."""
        self.writer.replace(table.name, self._places, files)
        self.totals.add(table.name, len(self._places), sum(file.rows for file in files), time.monotonic() - begun)

    @property
    def _places(self) -> list[Hour]:
        """The hours, in order."""
        return [task.manifest.hour for task in self.hours]
