"""Computes the rows of a portion with Arrow, and gives them to Spark: from its own Python processes, or from this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sbus_archive.pipeline.partials import counts, link_states
from sbus_archive.pipeline.partials.calls import PARTIES, SUMS, calls, histograms
from sbus_archive.pipeline.partials.deliveries import flows
from sbus_archive.pipeline.partials.link_states import links
from sbus_archive.pipeline.partials.portions import Portion, grouped, portions_of
from sbus_archive.pipeline.partials.rows import folded, joined, summed
from sbus_archive.record.schema import PARTITION_SCHEMA
from sbus_archive.record.segments import RecordReader
from sbus_archive.storage.location import ArchivePath
from sbus_archive.tables.hours import Manifest
from sbus_archive.tables.schema import CALLS, LINKS, RELAY, TABLES

FOLDED = {
    "traffic": (("prefix", "messages"),),
    "users": (),
    "flows": (("prefix", "deliveries"),),
    "calls": (("cmd", "calls"),),
    "losses": (("prefix", "count"),),
    "security": (("key", "events"), ("reason", "events")),
    "disconnects": (("reason", "disconnects"),),
    "relay": (("cmd", "attempts"),),
}
"""Columns whose values clients can invent, with the column by which the heaviest are chosen: the others share a row."""

LEAST, MOST = ("first",), ("last", "longest", "longest_us")
"""Columns of which the minimum or the maximum is taken, instead of the sum."""

_TYPES = {"int64": "bigint", "int32": "int", "string": "string", "bool": "boolean", "timestamp[us, tz=UTC]": "timestamp"}

_PARTIES = [pa.field(name, pa.int64() if name.endswith("_uid") else pa.string()) for name in PARTIES]

_BY_BUCKET = pa.schema([*_PARTIES, *(pa.field(name, pa.int64()) for name in ("bucket", *SUMS, "longest"))])
"""Calls by latency bucket, null without a reply."""

_BY_CALL = pa.schema(
    [
        pa.field("twin", pa.int64()),
        *(pa.field(name, pa.string()) for name in ("cmd", "outcome")),
        *(pa.field(name, pa.int64()) for name in ("call_id", "attempts", "retries", "longest_us")),
    ]
)
"""Attempts by call, so that different calls can be counted."""

_PARTIAL = {CALLS.name: _BY_BUCKET, RELAY.name: _BY_CALL, LINKS.name: link_states.SCHEMA}


def columns_of(table: str) -> pa.Schema:
    """Return the columns of *table* with ``date``, ``hour`` and ``host``; percentiles are not among them."""
    (columns,) = (each.arrow_schema() for each in TABLES if each.name == table)
    return _placed([pa.field(each.name, each.type) for each in columns if not each.name.startswith("latency_p")])


def partial_columns_of(table: str) -> pa.Schema:
    """Return the columns of partial rows for *table*, with ``date``, ``hour`` and ``host``."""
    return _placed(list(_PARTIAL[table])) if table in _PARTIAL else columns_of(table)


def keys_of(table: str) -> list[str]:
    """Return the columns of partial rows that identify one of an hour and host."""
    if table == CALLS.name:
        return [*PARTIES, "bucket"]
    return [name for each in TABLES if each.name == table for name in each.keys if name not in PARTITION_SCHEMA.names]


def ddl_of(schema: pa.Schema) -> str:
    """Return *schema* in Spark's DDL."""
    return ", ".join(f"`{field.name}` {_name_of(field.type)}" for field in schema)


def _placed(fields: list[pa.Field]) -> pa.Schema:
    """Return *fields* after those of the place."""
    places = [pa.field(each.name, each.type) for each in PARTITION_SCHEMA]
    return pa.schema([*places, *(field for field in fields if field.name not in PARTITION_SCHEMA.names)])


def _name_of(kind: pa.DataType) -> str:
    """Return Spark's name of a type."""
    if isinstance(kind, pa.ListType):
        return f"array<{_name_of(kind.value_type)}>"
    if isinstance(kind, pa.StructType):
        return f"struct<{','.join(f'{field.name}:{_name_of(field.type)}' for field in kind)}>"
    return _TYPES[str(kind)]


TEXT_ROWS = 1 << 16
"""Maximum number of rows whose text is in memory at once, instead of numbers: a key can have four thousand bytes."""

_ALWAYS_PARTIAL = (RELAY.name, LINKS.name)
"""Tables that Spark computes from few rows, with more than sums."""

_SUMS: Mapping[str, Callable[[RecordReader, Portion], Iterator[pa.Table]]] = {
    "traffic": counts.traffic,
    "users": counts.users,
    "flows": flows,
    "calls": calls,
    "losses": counts.losses,
    "security": counts.security,
    "disconnects": counts.disconnects,
    "relay": counts.relay,
    "links": links,
}


def is_complete(table: str, portion: Portion) -> bool:
    """Return whether the rows of *portion* are those of the table."""
    return portion.is_whole and table not in _ALWAYS_PARTIAL


def rows_of(record: RecordReader, table: str, portion: Portion) -> Iterator[pa.Table]:
    """Yield the rows of *portion* for *table*, with the columns of the table if it is complete, else those of partial rows.

    Raises:
        RecordError: a segment is missing or damaged.
    """
    found = _SUMS[table](record, portion)
    if not is_complete(table, portion):
        for rows in found:
            yield from _with_place(rows, portion, partial_columns_of(table))
    elif parts := list(found):
        yield from _with_place(_completed(parts, table), portion, columns_of(table))


def _completed(parts: list[pa.Table], table: str) -> pa.Table:
    """Return the rows of an hour of a host, from all its partial rows."""
    rows = _added_up(joined(parts), table) if len(parts) > 1 else parts[0]
    for column, weight in FOLDED[table]:
        fewer = folded(rows, column, weight)
        rows = rows if fewer is rows else _added_up(fewer, table)
    return histograms(rows) if table == CALLS.name else rows


def _added_up(rows: pa.Table, table: str) -> pa.Table:
    """Return *rows* added up by their key columns."""
    keys = keys_of(table)
    values = [name for name in rows.column_names if name not in keys]
    sums = [name for name in values if name not in (*LEAST, *MOST)]
    return summed(rows, keys, sums, least=[name for name in values if name in LEAST], most=[name for name in values if name in MOST])


def _with_place(rows: pa.Table, portion: Portion, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield *rows* with the columns of *schema*, and with text instead of dictionary arrays."""
    place = {"date": portion.hour.date, "hour": portion.hour.hour, "host": portion.host}
    for begin in range(0, rows.num_rows, TEXT_ROWS):
        some = rows.slice(begin, TEXT_ROWS)
        constants = {name: pa.repeat(pa.scalar(value, schema.field(name).type), some.num_rows) for name, value in place.items()}
        columns = [constants[field.name] if field.name in constants else some.column(field.name).cast(field.type) for field in schema]
        yield pa.Table.from_arrays(columns, schema=schema).combine_chunks()


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
