"""``spark.readStream.format("sbus").load()``: the live bus, by its tap. It cannot be read again, and the offsets show it.

An offset is a random number of the tap, and a number of rows. A restarted query asks for rows of a tap that does not exist anymore. Instead
of the rows of the interrupted batch it gets one row of kind ``gap`` with their number, and before the first row of the new tap one of kind
``restart``.
"""

from __future__ import annotations

import datetime
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sbusd.archive.record.kinds import Kind
from sbusd.archive.record.schema import Row
from sbusd.pipeline.errors import SourceError
from sbusd.pipeline.source.background_tap import BackgroundTap
from sbusd.pipeline.source.columns import arrow_schema
from sbusd.pipeline.source.options import Options

LIVE_ROWS = 100_000
"""Default rows of a batch; the buffer has room for two of them."""

TASK_ROWS = 1 << 14
"""Rows of one task; they are sent with it."""


@dataclass
class LivePartition(InputPartition):
    """The rows of one task. They are sent with the task, because only the driver has the tap."""

    batch: pa.RecordBatch


class LiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the live bus. The tap begins when Spark first requests an offset, not where tasks are planned and run."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises SourceError: a column does not exist."""
        self._options = options
        self._schema = arrow_schema(schema)
        self._id = secrets.token_hex(8)
        self._listener: BackgroundTap | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Begin the tap, and return the offset before the first row. Raises SbusError."""
        self._listening()
        return {"listener": self._id, "rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the option ``maxRowsPerTrigger`` sets."""
        return ReadMaxRows(self._options.max_rows or LIVE_ROWS)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Refuse: the live bus has no end. Raises SourceError."""
        raise SourceError("trigger availableNow is not possible: the live bus has no end. Use another trigger, or load an archive")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch. Raises SbusError."""
        _, begun = self._read_offset(start)
        end = self._listening().end
        if isinstance(limit, ReadMaxRows):
            end = min(end, begun + limit.max_rows)
        return start if end == begun else {"listener": self._id, "rows": end}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of the batch. Raises SbusError."""
        is_own, first = self._read_offset(start)
        if end.get("listener") != self._id:
            # The batch belongs to a tap that does not exist anymore.
            before = int(start["rows"]) if start.get("listener") == end.get("listener") else 0
            rows = [Row(time.time_ns(), 0, Kind.GAP.value, lost=int(end["rows"]) - before, reason="the query was restarted")]
        else:
            rows = [] if is_own else [Row(time.time_ns(), 0, Kind.RESTART.value, reason="the query was restarted")]
            rows += self._listening().rows(first, int(end["rows"]))
        return [self._partition(rows[first : first + TASK_ROWS]) for first in range(0, len(rows), TASK_ROWS)] or [self._partition([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if not isinstance(partition, LivePartition):
            raise TypeError(f"not a partition of the live bus: {partition!r}")
        if partition.batch.num_rows:
            yield partition.batch

    def commit(self, end: dict[str, Any]) -> None:
        """Drop the rows before *end*."""
        if self._listener is not None and end.get("listener") == self._id:
            self._listener.drop(int(end["rows"]))

    def stop(self) -> None:
        """Close the connection."""
        if self._listener is not None:
            self._listener.stop()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that is sent to tasks, without the connection."""
        return {**self.__dict__, "_listener": None}

    def _read_offset(self, offset: dict[str, Any]) -> tuple[bool, int]:
        """Return whether *offset* belongs to this tap, and the number of its next row."""
        if not isinstance(offset.get("listener"), str) or not isinstance(offset.get("rows"), int):
            raise SourceError("the checkpoint is not one of a stream of the live bus. Use a separate checkpoint for this query")
        is_own = offset["listener"] == self._id
        return is_own, int(offset["rows"]) if is_own else 0

    def _listening(self) -> BackgroundTap:
        """Return the tap, which has begun."""
        if self._listener is None:
            listener = BackgroundTap(self._options.address, self._options.key)
            listener.start()
            self._listener = listener
        return self._listener

    def _partition(self, rows: list[Row]) -> LivePartition:
        """Return the partition that yields *rows*."""
        return LivePartition(live_batch(rows, self._schema))


def live_batch(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Return *rows* with the columns of *schema*; day and hour are those of the time, the host is this machine."""
    columns = []
    for field in schema:
        if field.name in Row._fields:
            values: list[object] = [getattr(row, field.name) for row in rows]
        elif field.name == "host":
            values = [socket.gethostname()] * len(rows)
        else:
            moments = [datetime.datetime.fromtimestamp(row.ts // 10**9, datetime.UTC) for row in rows]
            values = [moment.strftime("%Y-%m-%d") if field.name == "date" else moment.hour for moment in moments]
        columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
