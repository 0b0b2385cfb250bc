"""Gives Spark the rows that Arrow computes: from its own Python processes, or in a small run from this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sbusd.archive.record.segments import RecordReader
from sbusd.archive.storage.location import ArchivePath
from sbusd.archive.tables.hours import Manifest
from sbusd.pipeline.partials.columns import columns_of, ddl_of, partial_columns_of
from sbusd.pipeline.partials.portions import Portion, grouped, portions_of
from sbusd.pipeline.partials.sums import is_complete, rows_of

BATCH_BYTES = 8 << 20
"""Bytes of rows that are passed to Spark at once: Java has as many of these buffers as processors."""


@dataclass
class Task(InputPartition):
    """The portions of one task of Spark."""

    portions: tuple[Portion, ...]


class PortionReader(DataSourceReader):
    """Computes the rows of each task where it runs."""

    def __init__(self, root: ArchivePath, table: str, tasks: Sequence[Task]) -> None:
        self._root = root
        self._table = table
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        return self._tasks

    def __getstate__(self) -> dict[str, object]:
        """Return the state for a process that reads: Spark sends it to each task, which needs only its own portions."""
        return {**self.__dict__, "_tasks": ()}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raises RecordError: a segment is missing or damaged."""
        if not isinstance(partition, Task):
            raise TypeError(f"not a task of portions: {partition!r}")
        # Spark already runs one task on each processor.
        pa.set_cpu_count(1)
        for portion in partition.portions:
            for rows in rows_of(RecordReader(self._root), self._table, portion):
                yield from rows.to_batches(max(1, rows.num_rows * BATCH_BYTES // max(1, rows.nbytes)))


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of some hours for one table; None if there are none."""

    complete: DataFrame | None
    """Rows of the table."""
    partial: DataFrame | None
    """Partial rows, of hours of hosts that were divided."""


def read_rows_of(spark: SparkSession, root: ArchivePath, table: str, hours: Sequence[Manifest], *, is_small: bool) -> TableRows:
    """Return the rows of *hours* for *table*. *is_small*: they are computed in this process, else each time that Spark uses them.

    Raises:
        RecordError: in a small run, a segment is missing or damaged.
    """
    # Executors have working directories of their own.
    root = root.absolute() if isinstance(root, Path) else root
    portions = portions_of(table, hours)
    groups = [[portion for portion in portions if is_complete(table, portion) == wanted] for wanted in (True, False)]
    make = _computed_here if is_small else _read_by_spark
    complete, partial = (
        make(spark, root, table, some, schema) if some else None
        for some, schema in zip(groups, (columns_of(table), partial_columns_of(table)), strict=True)
    )
    return TableRows(complete, partial)


def _computed_here(spark: SparkSession, root: ArchivePath, table: str, portions: Sequence[Portion], schema: pa.Schema) -> DataFrame | None:
    """Return the rows of *portions*, computed in this process."""
    # Spark cannot read Arrow columns without chunks.
    found = [rows for portion in portions for rows in rows_of(RecordReader(root), table, portion)]
    return spark.createDataFrame(pa.concat_tables(found), ddl_of(schema)).coalesce(1) if found else None


def _read_by_spark(spark: SparkSession, root: ArchivePath, table: str, portions: Sequence[Portion], schema: pa.Schema) -> DataFrame:
    """Return the rows of *portions*, computed by Spark's Python processes."""
    kind = "complete" if is_complete(table, portions[0]) else "partial"
    tasks = [Task(group) for group in grouped(portions, spark.sparkContext.defaultParallelism)]

    class Portions(DataSource):
        """The rows of one table; Spark sends it to its processes with the tasks in it."""

        @classmethod
        def name(cls) -> str:
            # Tables are computed at the same time.
            return f"sbus_{kind}_{table}"

        def schema(self) -> str:
            return ddl_of(schema)

        def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - that of this source
            return PortionReader(root, table, tasks)

    spark.dataSource.register(Portions)
    return spark.read.format(Portions.name()).load()
