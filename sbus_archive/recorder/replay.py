"""Selects the messages of a record that can be published again, in chronological order. It does not use the bus; ``sbusctl replay``
does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from sbus.protocol.keys import KeySpace
from sbus_archive.record.layout import IndexEntry
from sbus_archive.record.schema import RowKind, key_bytes
from sbus_archive.record.segments import RecordReader
from sbus_archive.storage.files import RecordError

_COLUMNS = ("ts", "seq", "kind", "key", "payload", "payload_bytes")

_RESERVED = b"!/"


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """A message of the record: the time it was routed, in nanoseconds since 1970, its key and its complete payload."""

    ts: int
    key: bytes
    payload: bytes


@dataclass(slots=True)
class SkippedMessages:
    """Messages that cannot be published again, by reason."""

    reserved: int = 0
    """Reserved keys: private messages, and messages for a single connection, which does not exist anymore."""
    cut: int = 0
    """The payload was recorded in part."""
    left_out: int = 0
    """The payload was omitted."""


@dataclass(slots=True)
class Replay:
    """The messages of an archive. Iterate once; ``skipped`` and ``missing`` are updated during the iteration."""

    archive: RecordReader
    pattern: bytes = b""
    """Pattern that keys must match."""
    host: str | None = None
    """Host that recorded the messages; None: all hosts."""
    skipped: SkippedMessages = field(default_factory=SkippedMessages)
    missing: int = 0
    """Number of rows that are missing according to the index."""

    def entries(self) -> list[IndexEntry]:
        """Return the available segments in chronological order. Raises RecordError."""
        return [entry for entry in self.archive.entries() if self.host in (None, entry.host)]

    def __iter__(self) -> Iterator[RecordedMessage]:
        """Yield the messages in chronological order. One hour is in memory at a time.

        Raises:
            RecordError: a segment is missing or damaged.
        """
        keyspace = KeySpace()
        for _, hour in groupby(self.entries(), key=lambda entry: (entry.date, entry.hour)):
            entries = list(hour)
            self.missing += sum(entry.missing for entry in entries)
            for recorded in _messages(pa.concat_tables([self._read(entry) for entry in entries])):
                key = self._key(recorded.key)
                # A pattern matches a reserved key only if it spells out the reserved part. Without a pattern, reserved keys are counted as
                # skipped.
                is_wanted = keyspace.matches(self.pattern, key) or (not self.pattern and key.startswith(_RESERVED))
                if is_wanted and (whole := self._whole(key, recorded)) is not None:
                    yield whole

    def _key(self, text: str) -> bytes:
        """Return the key for the record's *text*."""
        try:
            return key_bytes(text)
        except ValueError as error:
            raise RecordError(self.archive.root, str(error)) from None

    def _read(self, entry: IndexEntry) -> pa.Table:
        """Return the messages of one segment, with the columns needed here."""
        table = self.archive.read(entry, _COLUMNS)
        return table.filter(pc.equal(table.column("kind"), RowKind.MESSAGE.value))

    def _whole(self, key: bytes, row: _MessageRow) -> RecordedMessage | None:
        """Return the message of a row. If it cannot be published again, count it and return None."""
        if key.startswith(_RESERVED):
            self.skipped.reserved += 1
        elif row.payload is None:
            self.skipped.left_out += 1
        elif len(row.payload) < row.payload_bytes:
            self.skipped.cut += 1
        else:
            return RecordedMessage(row.ts, key, row.payload)
        return None


@dataclass(frozen=True, slots=True)
class _MessageRow:
    """The columns of one message."""

    ts: int
    key: str
    payload: bytes | None
    payload_bytes: int


def _messages(table: pa.Table) -> Iterator[_MessageRow]:
    """Yield the messages of *table* in chronological order."""
    for batch in table.sort_by([("ts", "ascending"), ("seq", "ascending")]).to_batches(max_chunksize=1 << 14):
        columns = (batch.column(name).to_pylist() for name in ("ts", "key", "payload", "payload_bytes"))
        for row in zip(*columns, strict=True):
            yield _MessageRow(*row)


def paced(
    messages: Iterable[RecordedMessage], speed: float, clock: Callable[[], float], sleep: Callable[[float], object]
) -> Iterator[RecordedMessage]:
    """Yield *messages* with the recorded time between them divided by *speed*; 0: without pauses.

    A delayed message does not delay the next ones: each has a time of its own.
    """
    begun: float | None = None
    first = 0
    for message in messages:
        if begun is None:
            begun, first = clock(), message.ts
        if speed and (pause := begun + (message.ts - first) / 1e9 / speed - clock()) > 0:
            sleep(pause)
        yield message
