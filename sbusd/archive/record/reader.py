"""Reads an archive by its index, segment by segment. Spec: sbus-record(5)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from sbusd.archive.errors import RecordError, SegmentGoneError
from sbusd.archive.record.index import IndexEntry, read_index
from sbusd.archive.record.schema import PARTITION_SCHEMA, SCHEMA, completed, is_readable


@dataclass(frozen=True, slots=True)
class RecordReader:
    """The record in the directory ``root``, of any number of hosts. Nothing is cached."""

    root: Path

    def entries(self, *, removed: bool = False, unreadable: Callable[[RecordError], None] | None = None) -> list[IndexEntry]:
        """Return the index, ordered by date, hour, host and ``seq``; with *removed* also removed segments.

        With *unreadable*, entries that cannot be read are skipped, and *unreadable* is called with the error.

        Raises:
            RecordError: the directory does not exist, or an entry is damaged.
        """
        return [entry for entry in read_index(self.root, unreadable) if removed or not entry.is_removed]

    def path(self, entry: IndexEntry) -> Path:
        """Return the path of the segment of *entry*."""
        return self.root / entry.path

    def read(self, entry: IndexEntry, columns: Sequence[str] | None = None) -> pa.Table:
        """Return *columns* of the rows of one segment; None: all of :data:`SCHEMA`, and ``date``, ``hour`` and ``host``.

        Raises:
            SegmentGoneError: it does not exist.
            RecordError: it is damaged.
        """
        names = [*SCHEMA.names, *PARTITION_SCHEMA.names] if columns is None else list(columns)
        with self._open(entry) as file:
            try:
                table = file.read(columns=[name for name in names if name in file.schema_arrow.names])
            except (pa.ArrowException, OSError) as error:
                raise RecordError(self.path(entry), f"damaged segment: {_first_line(error)}") from None
        return _with_others(table, entry, names).select(names)

    def read_batches(self, entry: IndexEntry, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one segment with the columns of :data:`SCHEMA`, at most *rows* at a time. Raises what :meth:`read` raises."""
        with self._open(entry) as file:
            try:
                yield from map(completed, file.iter_batches(batch_size=rows))
            except (pa.ArrowException, OSError) as error:
                raise RecordError(self.path(entry), f"damaged segment: {_first_line(error)}") from None

    def scan(self, entry: IndexEntry, columns: Sequence[str], wanted: pc.Expression | None, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield *columns* of :data:`SCHEMA` of the rows that match *wanted*, in the order of the file, at most *rows* at a time.

        Raises what :meth:`read` raises.
        """
        self._open(entry).close()
        try:
            source = ds.dataset(self.path(entry), format="parquet", schema=SCHEMA)
            # Little is read ahead, because Spark reads one segment per processor at the same time.
            yield from source.to_batches(list(columns), filter=wanted, batch_size=rows, batch_readahead=2, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(entry, error) from None

    def verify(self, entry: IndexEntry) -> None:
        """Compare the checksum of one segment with its index entry.

        Raises:
            SegmentGoneError: it does not exist.
            RecordError: the checksum differs.
        """
        path = self.path(entry)
        try:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise self._unreadable(entry, error) from None
        if digest != entry.sha256:
            raise RecordError(path, "checksum mismatch: the segment is damaged, or its index entry describes another file")

    def _open(self, entry: IndexEntry) -> pq.ParquetFile:
        """Return the open file of a segment, after a check of its columns."""
        path = self.path(entry)
        try:
            file = pq.ParquetFile(path, memory_map=False)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(entry, error) from None
        if not is_readable(file.schema_arrow):
            file.close()
            raise RecordError(path, "not a segment: its columns are not those of sbus-record(5)")
        return file

    def _unreadable(self, entry: IndexEntry, error: Exception) -> RecordError:
        """Return the RecordError for an *error* at opening the segment of *entry*."""
        path = self.path(entry)
        if isinstance(error, FileNotFoundError):
            why = f"removed by the recorder: {entry.removed_because}" if entry.is_removed else "missing, but named in the index"
            return SegmentGoneError(path, why)
        if isinstance(error, OSError) and error.strerror:
            return RecordError(path, f"cannot read file: {error.strerror}")
        return RecordError(path, f"damaged segment: {_first_line(error)}")


def _with_others(table: pa.Table, entry: IndexEntry, names: Sequence[str]) -> pa.Table:
    """Return *table* with the columns of the directories, and with null for those of *names* that its version does not have."""
    for name in names:
        if name in SCHEMA.names and name not in table.column_names:
            table = table.append_column(SCHEMA.field(name), pa.nulls(table.num_rows, SCHEMA.field(name).type))
    for field, value in zip(PARTITION_SCHEMA, (entry.date, entry.hour, entry.host), strict=True):
        table = table.append_column(field, pa.repeat(pa.scalar(value, field.type), table.num_rows))
    return table


def _first_line(error: Exception) -> str:
    """Return the message of a library in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
