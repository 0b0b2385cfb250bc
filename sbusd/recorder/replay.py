"""A record, published again: which of its messages can be, in the order of time, and when. No bus here: ``sbusctl replay`` has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from sbusd.archive.errors import RecordError
from sbusd.archive.record.index import IndexEntry
from sbusd.archive.record.key_text import key_bytes
from sbusd.archive.record.kinds import Kind
from sbusd.archive.record.reader import RecordReader
from sbusd.protocol.keys import KeySpace

_COLUMNS = ("ts", "seq", "kind", "key", "payload", "payload_bytes")

_RESERVED = b"!/"


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """A message of the record: when it was routed, nanoseconds since 1970, its key and its whole payload."""

    ts: int
    key: bytes
    payload: bytes


@dataclass(slots=True)
class SkippedMessages:
    """Messages that cannot be published again, by the reason."""

    reserved: int = 0
    """Secret, or for one connection alone: whom they were for is no more, or none of the replayer's business."""
    cut: int = 0
    """Their payload was not kept whole."""
    left_out: int = 0
    """Their payload was not kept at all."""


@dataclass(slots=True)
class Replay:
    """The messages of an archive. Iterate once; ``skipped`` and ``missing`` count as that goes on."""

    archive: RecordReader
    pattern: bytes = b""
    """Which keys: those that this pattern takes."""
    host: str | None = None
    """Of which host; None: of all."""
    skipped: SkippedMessages = field(default_factory=SkippedMessages)
    missing: int = 0
    """Rows that the record itself knows to be missing."""

    def entries(self) -> list[IndexEntry]:
        """Return the segments that are there, in the order of time. Raises RecordError."""
        return [entry for entry in self.archive.entries() if self.host in (None, entry.host)]

    def __iter__(self) -> Iterator[RecordedMessage]:
        """Yield the messages, in the order of time. An hour at a time is in memory.

        Raises:
            RecordError: a segment is missing or damaged.
        """
        keyspace = KeySpace()
        for _, hour in groupby(self.entries(), key=lambda entry: (entry.date, entry.hour)):
            entries = list(hour)
            self.missing += sum(entry.missing for entry in entries)
            for recorded in _messages(pa.concat_tables([self._read(entry) for entry in entries])):
                key = self._key(recorded.key)
                # A pattern takes reserved keys only where it spells them out; that there are such is told anyway where all are asked for.
                is_wanted = keyspace.matches(self.pattern, key) or (not self.pattern and key.startswith(_RESERVED))
                if is_wanted and (whole := self._whole(key, recorded)) is not None:
                    yield whole

    def _key(self, text: str) -> bytes:
        """Return the key that the record has as *text*."""
        try:
            return key_bytes(text)
        except ValueError as error:
            raise RecordError(self.archive.root, str(error)) from None

    def _read(self, entry: IndexEntry) -> pa.Table:
        """Return what is needed of one segment."""
        table = self.archive.read(entry, _COLUMNS)
        return table.filter(pc.equal(table.column("kind"), Kind.MESSAGE.value))

    def _whole(self, key: bytes, row: _MessageRow) -> RecordedMessage | None:
        """Return the message of a row, None, and counted, if it cannot be published again."""
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
    """What the record has of a message."""

    ts: int
    key: str
    payload: bytes | None
    payload_bytes: int


def _messages(table: pa.Table) -> Iterator[_MessageRow]:
    """Yield the rows of *table*, which are messages, in the order of time."""
    for batch in table.sort_by([("ts", "ascending"), ("seq", "ascending")]).to_batches(max_chunksize=1 << 14):
        columns = (batch.column(name).to_pylist() for name in ("ts", "key", "payload", "payload_bytes"))
        for row in zip(*columns, strict=True):
            yield _MessageRow(*row)


def paced(
    messages: Iterable[RecordedMessage], speed: float, clock: Callable[[], float], sleep: Callable[[float], object]
) -> Iterator[RecordedMessage]:
    """Yield *messages* as far apart as they were, divided by *speed*; 0 is without any pause.

    What has fallen behind catches up: each is due at its own time, not so long after the one before.
    """
    begun: float | None = None
    first = 0
    for message in messages:
        if begun is None:
            begun, first = clock(), message.ts
        if speed and (pause := begun + (message.ts - first) / 1e9 / speed - clock()) > 0:
            sleep(pause)
        yield message
