"""Reads an archive for Spark: as it is when the query is planned, or as a stream of segments, each once, as it arrives.

``spark.read.format("sbus").load(archive)`` and ``spark.readStream.format("sbus").load(archive)``. Batches of a stream can be repeated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sbus.protocol.keys import KeySpace
from sbus.protocol.printable import LINE_CHARACTERS, printable
from sbus_archive.pipeline.errors import SourceError
from sbus_archive.pipeline.source.archive_offset import Offset, Slice, StreamIndex, StreamTarget, next_offset
from sbus_archive.pipeline.source.options import Condition, Options, arrow_schema
from sbus_archive.record.index import find_entry, read_entries, read_index
from sbus_archive.record.layout import HOUR_NS, INDEX, IndexEntry, SegmentName
from sbus_archive.record.schema import SCHEMA, key_bytes
from sbus_archive.record.segments import RecordReader
from sbus_archive.storage.files import RecordError
from sbus_archive.storage.location import ArchivePath, is_remote
from sbus_archive.storage.store import store_of

TASK_BYTES = 32 << 20
"""Bytes of segments per task (or one segment): about a million rows, a second of work. Small segments share a task."""

BATCH_ROWS = 1 << 16
"""Rows of a batch. Spark is fastest with 64 to 256 thousand; with payloads of a few hundred bytes that is 20 MiB."""

_UNGUARDED = KeySpace(is_guarded=False)


@dataclass
class SegmentsPartition(InputPartition):
    """The segments of one task."""

    entries: tuple[IndexEntry, ...]


class ArchiveReader(DataSourceReader):
    """Reads an archive. The driver selects the segments once."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises SourceError: no archive is given, or a column does not exist."""
        self._root = archive_of(options)
        self._schema = arrow_schema(schema)
        self._selection = RowFilter(options.key, options.conditions)
        self._fails_on_unreadable = options.unreadable == "fail"
        self._segments = options.segments

    def partitions(self) -> list[InputPartition]:
        """Return the partitions. Raises RecordError: an index entry is damaged, and the option unreadable is not skip."""
        entries = [entry for entry in self._entries() if self._selection.may_have(entry)]
        return [SegmentsPartition(tuple(group)) for group in _grouped(entries)] or [SegmentsPartition(())]

    def _entries(self) -> list[IndexEntry]:
        """Return the entries of the option ``segments``, or of all segments that exist. Raises RecordError."""
        unreadable = None if self._fails_on_unreadable else warn_skipped
        if self._segments is not None:
            return read_entries(self._root, self._segments, unreadable)
        return [entry for entry in read_index(self._root, unreadable, wanted=self._selection.may_have_hour) if not entry.is_removed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raises RecordError: a segment is damaged, or was removed after planning."""
        if not isinstance(partition, SegmentsPartition):
            raise TypeError(f"not a partition of an archive: {partition!r}")
        for entry in partition.entries:
            yield from read_batches(self._root, entry, self._schema, self._selection)


def archive_of(options: Options) -> ArchivePath:
    """Return the archive of *options*. Raises SourceError: none is given, or it is not an archive."""
    if options.archive is None:
        raise SourceError('no archive given: use spark.read.format("sbus").load("/var/lib/sbus-recorder/archive")')
    store = store_of(options.archive)
    if is_remote(options.archive):
        if not store.is_folder(INDEX):
            raise SourceError(f"{options.archive}: not an archive: no objects under {INDEX}/. sbus-ship creates them")
    elif not store.is_folder():
        raise SourceError(f"{options.archive}: not an archive: no such directory")
    elif not store.is_folder(INDEX):
        raise SourceError(f"{options.archive}: not an archive: no directory {INDEX}. sbus-recorder creates it")
    return options.archive


def warn_skipped(error: RecordError) -> None:
    """Print on standard error of the driver that an index entry was skipped."""
    print(f"sbus: skipped: {printable(str(error), LINE_CHARACTERS)}", file=sys.stderr, flush=True)


def _grouped(entries: Iterable[IndexEntry]) -> Iterator[list[IndexEntry]]:
    """Yield *entries* in groups of about :data:`TASK_BYTES`."""
    group: list[IndexEntry] = []
    for entry in entries:
        if group and sum(each.bytes for each in group) + entry.bytes > TASK_BYTES:
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


@dataclass
class SlicePartition(InputPartition):
    """The slice of one task."""

    slice: Slice | None


class ArchiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads an archive as it grows. Its offset is :class:`~sbus_archive.pipeline.source.archive_offset.Offset`."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises SourceError: a column does not exist."""
        self._root = archive_of(options)
        self._schema = arrow_schema(schema)
        self._selection = RowFilter(options.key, options.conditions)
        self._max_rows = options.max_rows
        self._fails_on_unreadable = options.unreadable == "fail"
        self._said: set[ArchivePath] = set()
        self._index = StreamIndex(self._root, None if self._fails_on_unreadable else self._skip)
        self._target: StreamTarget | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return the offset of a stream that has read nothing."""
        return Offset.begin().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the option ``maxRowsPerTrigger`` sets."""
        return ReadAllAvailable() if self._max_rows is None else ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read only what the index contains now."""
        self._target = self._index.target()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch. Raises RecordError, SourceError."""
        begun = Offset.from_json(start)
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return next_offset(begun, self._index.unread(begun, max_rows, self._target), max_rows).to_json()

    def _skip(self, error: RecordError) -> None:
        """Print, once for each entry, that it was skipped."""
        if error.path not in self._said:
            self._said.add(error.path)
            warn_skipped(error)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of the batch that ends at *end*; the result is always the same."""
        batch = Offset.from_json(end).batch if end != start else ()
        return [SlicePartition(each) for each in batch] or [SlicePartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. Raises SegmentGoneError: retention removed the segment; RecordError: it is damaged."""
        if not isinstance(partition, SlicePartition):
            raise TypeError(f"not a partition of an archive: {partition!r}")
        wanted = partition.slice
        if wanted is None:
            return
        name = SegmentName.parse(wanted.path)
        entry = find_entry(self._root, name)
        if wanted.last == entry.rows and not wanted.first:
            yield from read_batches(self._root, entry, self._schema, self._selection)
        else:
            yield from read_slice(self._root, entry, self._schema, self._selection, (wanted.first, wanted.last))


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Selects rows that match all ``conditions``, and whose key matches the pattern ``key``."""

    key: bytes = b""
    conditions: tuple[Condition, ...] = ()

    @property
    def columns(self) -> set[str]:
        """The columns of the record that the filter needs."""
        return {each.column for each in self.conditions if not each.is_of_folders} | ({"key"} if self.key else set())

    @property
    def expression(self) -> pc.Expression | None:
        """The conditions on rows as an Arrow expression, None if there are none."""
        found = [each.expression() for each in self.conditions if not each.is_of_folders]
        return reduce(and_, found) if found else None

    def may_have_hour(self, date: str, hour: int | None, host: str) -> bool:
        """Return whether segments of *host* for an hour can have matching rows; None: for any hour of the day."""
        start = SegmentName(date, hour or 0, host, 0).start_ns
        end = start + HOUR_NS * (24 if hour is None else 1)
        return all(condition.may_hold_in(host, start, end) for condition in self.conditions)

    def may_have(self, entry: IndexEntry) -> bool:
        """Return whether the segment of *entry* can have matching rows."""
        return all(condition.may_hold(entry) for condition in self.conditions)


def read_batches(root: ArchivePath, entry: IndexEntry, schema: pa.Schema, selection: RowFilter) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the segment of *entry* that match *selection*, in the order of the file, with the columns of *schema*.

    Raises:
        SegmentGoneError: it does not exist.
        RecordError: it is damaged.
    """
    if selection.may_have(entry):
        for batch in RecordReader(root).scan(
            entry, _columns(schema, {"key"} if selection.key else set()), selection.expression, BATCH_ROWS
        ):
            yield from _taken(batch, entry, schema, selection.key)


def read_slice(
    root: ArchivePath, entry: IndexEntry, schema: pa.Schema, selection: RowFilter, span: tuple[int, int]
) -> Iterator[pa.RecordBatch]:
    """As :func:`read_batches`, for the rows from the first number of *span* to the last (exclusive)."""
    if not selection.may_have(entry):
        return
    (first, last), position, wanted = span, 0, selection.expression
    # Rows are counted before they are filtered.
    for batch in RecordReader(root).scan(entry, _columns(schema, selection.columns), None, BATCH_ROWS):
        begin, end = max(first - position, 0), min(last - position, batch.num_rows)
        position += batch.num_rows
        if begin < end:
            part = pa.Table.from_batches([batch.slice(begin, end - begin)])
            for each in (part if wanted is None else part.filter(wanted)).to_batches():
                yield from _taken(each, entry, schema, selection.key)
        if position >= last:
            return


def matches(pattern: bytes, key: str | None) -> bool:
    """Return whether *pattern* matches *key*, text of the record; the empty pattern also matches rows without a key."""
    return not pattern or (key is not None and _UNGUARDED.matches(pattern, key_bytes(key)))


def _columns(schema: pa.Schema, more: set[str]) -> list[str]:
    """Return the columns of the record to read for *schema* and *more*."""
    return [name for name in SCHEMA.names if name in schema.names or name in more]


def _taken(batch: pa.RecordBatch, entry: IndexEntry, schema: pa.Schema, pattern: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *batch* whose key matches *pattern*, with the columns of *schema*; nothing if there are none."""
    if pattern:
        # A segment has far fewer keys than rows.
        keys = batch.column("key")
        distinct = [key for key in pc.unique(keys).to_pylist() if matches(pattern, key)]
        batch = batch.filter(pc.is_in(keys, pa.array(distinct, pa.string())))
    if batch.num_rows:
        yield _with_columns(batch, schema, {"date": entry.date, "hour": entry.hour, "host": entry.host})


def _with_columns(batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, str | int]) -> pa.RecordBatch:
    """Return the columns of *schema*, from *batch* or as *constants*."""
    columns = [
        pa.repeat(pa.scalar(constants[field.name], field.type), batch.num_rows) if field.name in constants else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
