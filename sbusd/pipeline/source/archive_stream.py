"""``spark.readStream.format("sbus").load(archive)``: each segment once, as it arrives. Batches can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sbusd.archive.errors import RecordError
from sbusd.archive.record.index import IndexEntry, index_names, read_entry
from sbusd.archive.record.layout import SegmentName
from sbusd.pipeline.source.archive_reader import archive_of, warn_skipped
from sbusd.pipeline.source.arrivals import Offset, Slice, next_offset
from sbusd.pipeline.source.columns import arrow_schema
from sbusd.pipeline.source.options import Options
from sbusd.pipeline.source.segments import RowFilter, read_batches, read_slice


@dataclass
class SlicePartition(InputPartition):
    """The slice of one task."""

    slice: Slice | None


class ArchiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads an archive as it grows. Its offset is :class:`~sbusd.pipeline.source.arrivals.Offset`."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Raises SourceError: a column does not exist."""
        self._root = archive_of(options)
        self._schema = arrow_schema(schema)
        self._selection = RowFilter(options.key, options.conditions)
        self._max_rows = options.max_rows
        self._fails_on_unreadable = options.unreadable == "fail"
        self._said: set[Path] = set()
        self._target: frozenset[SegmentName] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names, here and below
        """Return the offset of a stream that has read nothing."""
        return Offset.begin().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the option ``maxRowsPerTrigger`` sets."""
        return ReadAllAvailable() if self._max_rows is None else ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read only what the index contains now."""
        self._target = frozenset(self._names())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch. Raises RecordError, SourceError."""
        begun = Offset.from_json(start)
        names = self._names()
        if self._target is not None:
            names = [name for name in names if name in self._target]
        unread = [entry for name in begun.unread(names) if (entry := self._entry(name)) is not None]
        # A copy of an archive can contain an entry before its segment; the stream waits for the segment.
        ready = [entry for entry in unread if entry.is_removed or (self._root / entry.path).exists()]
        return next_offset(begun, ready, limit.max_rows if isinstance(limit, ReadMaxRows) else None).to_json()

    def _names(self) -> list[SegmentName]:
        """Return the names in the index. Raises RecordError."""
        return index_names(self._root, None if self._fails_on_unreadable else self._skip)

    def _entry(self, name: SegmentName) -> IndexEntry | None:
        """Return an entry; None for a damaged one that is skipped for now. Raises RecordError."""
        try:
            return read_entry(self._root / name.index_path)
        except RecordError as error:
            if self._fails_on_unreadable:
                raise
            self._skip(error)
            return None

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
        entry = read_entry(self._root / name.index_path)
        if wanted.last == entry.rows and not wanted.first:
            yield from read_batches(self._root, entry, self._schema, self._selection)
        else:
            yield from read_slice(self._root, entry, self._schema, self._selection, (wanted.first, wanted.last))
