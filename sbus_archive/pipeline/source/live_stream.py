"""``spark.readStream.format("sbus").load()``: the live bus, by its tap. It cannot be read again, and the offsets show it.

An offset is a random number of the tap, and a number of rows. A restarted query asks for rows of a tap that does not exist anymore. Instead
of the rows of the interrupted batch it gets one row of kind ``gap`` with their number, and before the first row of the new tap one of kind
``restart``.
"""

from __future__ import annotations

import datetime
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from queue import Queue
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sbus.errors import RemoteRefusal, TimedOut
from sbus.items import Gap, Reconnected, TapItem
from sbus.protocol.errors import SbusError
from sbus.sync.bus import Bus
from sbus.sync.streams import Tap
from sbus_archive.pipeline.errors import SourceError
from sbus_archive.pipeline.source.options import Options, arrow_schema
from sbus_archive.record.calls import CallRecognizer
from sbus_archive.record.schema import Row, RowKind, key_text

LIVE_ROWS = 100_000
"""Default rows of a batch; the buffer has room for two of them."""

TASK_ROWS = 1 << 14
"""Rows of one task; they are sent with it."""

MOST_ROWS = 200_000
"""Rows in the buffer: two batches of the default size, because a batch is kept until Spark has begun the next one."""

MOST_BYTES = 128 << 20
"""Bytes of payloads in the buffer. If either limit is reached, nothing is read, and the bus counts what it discards."""

_WAIT_SECONDS = 0.2
"""Interval between checks for :meth:`BackgroundTap.stop`."""

_CONNECT_SECONDS = 30.0

_SHORT = frozenset({"recipients", "queued", "discarded"})
"""Columns of 32 bits."""


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
            rows = [Row(time.time_ns(), 0, RowKind.GAP.value, lost=int(end["rows"]) - before, reason="the query was restarted")]
        else:
            rows = [] if is_own else [Row(time.time_ns(), 0, RowKind.RESTART.value, reason="the query was restarted")]
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


class BackgroundTap:
    """Taps the bus at ``address`` in the background, for keys that match a pattern; rows are numbered from 0. The buffer is bounded.

    Call :meth:`start` first. Rows are kept until :meth:`drop`.
    """

    def __init__(self, address: str | None, pattern: bytes) -> None:
        self._address = address
        self._pattern = pattern
        self._calls = CallRecognizer.of_this_boot(socket.gethostname())
        self._rows: deque[Row] = deque()
        self._first = 0
        self._bytes = 0
        self._changed = threading.Condition()
        self._ended = False
        self._defect: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="sbus-listener", daemon=True)
        self._begun: Queue[Exception | None] = Queue()

    def start(self) -> None:
        """Connect, and open the tap; no message is missed after the return.

        Raises:
            SourceError: this user may not tap the bus.
            SbusError: there is no bus.
        """
        self._thread.start()
        if (defect := self._begun.get()) is not None:
            raise defect

    @property
    def end(self) -> int:
        """The number of the next row. Raises the error that ended the connection."""
        with self._changed:
            if self._defect is not None and not self._rows:
                raise self._defect
            return self._first + len(self._rows)

    def rows(self, first: int, last: int) -> list[Row]:
        """Return the rows from *first* to *last* (exclusive), which have not been dropped."""
        with self._changed:
            if not self._first <= first <= last <= self._first + len(self._rows):
                raise SourceError(f"rows {first} to {last} are gone: the live bus cannot be read again")
            return [self._rows[number - self._first] for number in range(first, last)]

    def drop(self, end: int) -> None:
        """Drop the rows before *end*: they will not be needed again."""
        with self._changed:
            while self._rows and self._first < end:
                self._bytes -= len(self._rows.popleft().payload or b"")
                self._first += 1
            self._changed.notify()

    def stop(self) -> None:
        """Close the connection. It can be called again."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(_CONNECT_SECONDS)

    def _run(self) -> None:
        """Tap until :meth:`stop`; store an error for the next call."""
        try:
            with Bus.connect(self._address, timeout=_CONNECT_SECONDS, reconnect=True) as bus, bus.tap(self._pattern) as tap:
                self._begun.put(None)
                self._listen(tap)
        except RemoteRefusal as error:
            self._fail(SourceError(f"cannot tap the bus: {error.said}. Allow this user with tap under [rights] in sbusd.toml(5)"))
        except (SbusError, OSError) as error:
            self._fail(error)

    def _listen(self, tap: Tap) -> None:
        """Receive rows while there is room."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._has_room())
                if self._ended:
                    return
            try:
                item = tap.receive(timeout=_WAIT_SECONDS)
            except TimedOut:
                continue
            with self._changed:
                row = row_of(item, self._first + len(self._rows), self._calls)
                self._rows.append(row)
                self._bytes += len(row.payload or b"")

    def _has_room(self) -> bool:
        """Return whether there is room for another row."""
        return len(self._rows) < MOST_ROWS and self._bytes < MOST_BYTES

    def _fail(self, defect: Exception) -> None:
        """Store *defect* for :meth:`start`, or for the next call."""
        with self._changed:
            self._defect = defect
        self._begun.put(defect)


def row_of(item: TapItem, seq: int, calls: CallRecognizer | None = None) -> Row:
    """Return an item of the tap as a row of the record at position *seq*, with its role in a call if *calls* recognizes one. Only the
    recorder knows units."""
    if isinstance(item, Gap):
        return Row(time.time_ns(), seq, RowKind.TAP_LOSS.value, lost=item.lost or None, reason="the query is too slow")
    if isinstance(item, Reconnected):
        return Row(time.time_ns(), seq, RowKind.RESTART.value, duration=int(item.seconds * 1e9))
    fields, peer = item.fields, item.peer
    row = Row(_whole(fields, "time") or 0, seq, item.kind, key=None if item.key_bytes is None else key_text(item.key_bytes))
    if peer is not None:
        row = row._replace(conn=peer.connection, uid=peer.uid, gid=peer.gid, pid=peer.pid)
    if item.message is not None:
        recipients, queued, discarded = (_whole(fields, name) for name in ("recipients", "queued", "discarded"))
        payload = item.message.payload
        row = row._replace(recipients=recipients, queued=queued, discarded=discarded, missed=_numbers(fields, "missed"))
        row = row._replace(payload=payload, payload_bytes=len(payload))
        call = None if calls is None else calls.part(item.key_bytes or b"", payload, row.conn)
        if call is not None:
            role, expires = call.role, call.expires_seconds
            row = row._replace(call_id=call.call_id, call_role=role, call_cmd=call.command, call_exp=expires, call_failed=call.failed)
        return row._replace(vouched=_words(fields, "vouched"), to_conn=_whole(fields, "to"))
    lost = _whole(fields, "count")
    if lost is None and item.kind == RowKind.DENIAL:
        lost = 1
    return row._replace(code=_words(fields, "error"), reason=_words(fields, "reason"), packet=_words(fields, "packet"), lost=lost)


def _whole(fields: Mapping[str, object], name: str) -> int | None:
    """Return an integer that fits the column, None if there is none."""
    value = fields.get(name)
    return value if type(value) is int and 0 <= value < 1 << (31 if name in _SHORT else 63) else None


def _numbers(fields: Mapping[str, object], name: str) -> list[int] | None:
    """Return a list of integers that fit the column, None if there is none."""
    value = fields.get(name)
    return value if isinstance(value, list) and all(type(each) is int and 0 <= each < 1 << 63 for each in value) else None


def _words(fields: Mapping[str, object], name: str) -> str | None:
    """Return text that fits the column, None if there is none."""
    value = fields.get(name)
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else None
