"""Writes the rows of a table into Parquet files, by the processes of Spark that computed them. Only their description passes the driver.

In a directory, Spark writes them itself; all its machines see the directory under the same path. Spark has no client for object stores, so
there the Python processes of its executors write the objects, with the credentials in their own environment.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sbusd.archive.storage.location import ArchivePath
from sbusd.archive.storage.store import store_of
from sbusd.archive.tables.data_files import DataFile, adopt, new_staging, write_rows
from sbusd.archive.tables.schema import TABLES, Table, Type
from sbusd.pipeline.errors import PipelineError, root_cause
from sbusd.pipeline.measures.folding import spread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
