"""``df.write`` and ``df.writeStream`` with ``format("sbus")``: publishes rows as messages.

Tasks convert rows, and send them to the driver. The driver publishes when all tasks of the batch have succeeded. So a task that runs twice
publishes nothing twice, and the bus sees the credentials of the user of the driver, not of a worker.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from sbus.protocol.keys import MAX_KEY_BYTES
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus.sync.bus import Bus
from sbus_archive.pipeline.errors import SourceError
from sbus_archive.pipeline.source.options import Options
from sbus_archive.pipeline.source.outbox import MESSAGES, BatchResult, Outbox, pairs
from sbus_archive.record.schema import key_bytes

MOST_TASK_BYTES = 64 << 20
"""Maximum bytes of one task: they pass through the driver, whose memory holds those of all tasks of a batch."""

_TYPES = {"key": ("string", "binary"), "payload": ("binary", "string")}


@dataclass
class TaskMessages(WriterCommitMessage):
    """The messages of one task."""

    batches: list[pa.RecordBatch]


class RowConverter:
    """Converts rows into messages, on a worker. Checks the schema at once."""

    def __init__(self, schema: StructType) -> None:
        """Raises SourceError: the columns are not key and payload."""
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        if types.keys() != _TYPES.keys() or any(kind not in _TYPES[name] for name, kind in types.items()):
            found = ", ".join(f"{name} {kind}" for name, kind in types.items())
            raise SourceError(f"invalid columns {found}: publishing needs key and payload, each string or binary")

    def messages(self, batches: Iterable[pa.RecordBatch]) -> TaskMessages:
        """Return the messages for the rows of *batches*.

        Raises:
            SourceError: a row is invalid, or the task is too large.
        """
        made, size, row = [], 0, 0
        for batch in batches:
            keys = [_key(value, row + number) for number, value in enumerate(batch.column("key").to_pylist())]
            payloads = [_payload(value) for value in batch.column("payload").to_pylist()]
            for number, (key, payload) in enumerate(zip(keys, payloads, strict=True)):
                packet = len(key) + len(payload) + len(b"MSG \0")
                if packet > MAX_PACKET_BYTES:
                    raise SourceError(f"row {row + number} of the task is too large: packet of {packet} bytes, maximum {MAX_PACKET_BYTES}")
                size += packet
            if size > MOST_TASK_BYTES:
                raise SourceError(f"task is too large: more than {MOST_TASK_BYTES} bytes to publish. Repartition, or use smaller batches")
            row += batch.num_rows
            made.append(pa.RecordBatch.from_arrays([pa.array(keys, pa.binary()), pa.array(payloads, pa.binary())], schema=MESSAGES))
        return TaskMessages(made)


class StreamPublisher(DataSourceStreamArrowWriter):
    """Publishes each batch of a streaming query once; for exceptions see sbus-spark(7)."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises SourceError: the columns are wrong, or there is no outbox."""
        if options.outbox is None:
            raise SourceError('no outbox given: set .option("checkpointLocation", DIR) or .option("outbox", DIR)')
        self._options = options
        self._outbox = Outbox(options.outbox, options.chunk_rows, options.in_doubt)
        self._checker = RowConverter(schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Return the messages of one task. Raises SourceError."""
        return self._checker.messages(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish a batch, unless it was published before. Raises SbusError, OSError."""
        delivery = _deliver(self._outbox, self._options.address, self._options.query(), batchId, messages)
        _report(f"batch {batchId}", delivery)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: a batch whose tasks failed was not published."""


class QueryPublisher(DataSourceArrowWriter):
    """Publishes the rows of a query when all tasks have finished."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises SourceError: the columns are wrong, or only one of token and outbox is given."""
        if (options.token is None) != (options.outbox is None):
            raise SourceError("options token and outbox must be given together: the outbox stores the tokens that were published")
        self._options = options
        self._checker = RowConverter(schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Return the messages of one task. Raises SourceError."""
        return self._checker.messages(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish. Raises SbusError, OSError."""
        options = self._options
        if options.outbox is None or options.token is None:
            with BusConnection(options.address) as publish:
                for batch in _batches(messages):
                    publish(pairs(batch))
            return
        # A token is any text, but a series is part of a file name.
        series = "token-" + hashlib.sha256(options.token.encode()).hexdigest()[:32]
        outbox = Outbox(options.outbox, options.chunk_rows, options.in_doubt)
        _report(f"token {options.token!r}", _deliver(outbox, options.address, series, 0, messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: nothing was published."""


class BusConnection:
    """A connection, opened when there is something to publish. A call publishes messages, and waits until all are routed."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._bus: Bus | None = None

    def __call__(self, messages: list[tuple[bytes, bytes]]) -> None:
        """Publish *messages*. Raises RemoteRefusal: the bus refused one; Disconnected, TimedOut: some may not be routed."""
        if self._bus is None:
            self._bus = Bus.connect(self._address)
            self._bus.tell("echo/off")
        with self._bus.coalesce():
            for key, payload in messages:
                self._bus.publish(key, payload)
        self._bus.ping()

    def __enter__(self) -> BusConnection:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bus is not None:
            self._bus.close()


def _deliver(outbox: Outbox, address: str | None, series: str, number: int, messages: Iterable[WriterCommitMessage | None]) -> BatchResult:
    """Publish the *messages* of all tasks."""
    with BusConnection(address) as publish:
        return outbox.deliver(series, number, _batches(messages), publish)


def _batches(messages: Iterable[WriterCommitMessage | None]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of all tasks, in order."""
    for each in messages:
        if isinstance(each, TaskMessages):
            yield from each.batches


def _report(what: str, delivery: BatchResult) -> None:
    """Print what an interruption caused, if anything."""
    if delivery.repeated or delivery.skipped:
        words = f"published {delivery.repeated} messages again" if delivery.repeated else f"skipped {delivery.skipped} messages"
        print(f"sbus: {what} was interrupted: {words} that the bus may already have received", file=sys.stderr, flush=True)


def _key(value: object, row: int) -> bytes:
    """Return the key of a row. In text, a backslash must be doubled, as in the record."""
    if isinstance(value, str):
        try:
            key = key_bytes(value)
        except ValueError as error:
            raise SourceError(f"row {row} of the task: {error}") from None
    elif isinstance(value, bytes):
        key = value
    else:
        raise SourceError(f"row {row} of the task has no key")
    if b"\0" in key:
        raise SourceError(f"row {row} of the task: the key contains NUL")
    if len(key) > MAX_KEY_BYTES:
        raise SourceError(f"row {row} of the task: the key has {len(key)} bytes, maximum {MAX_KEY_BYTES}")
    return key


def _payload(value: object) -> bytes:
    """Return the payload of a row; null is empty."""
    if isinstance(value, str):
        return value.encode("utf-8")
    return value if isinstance(value, bytes) else b""
