"""Segments: writes the sorted rows of one write-ahead file, and reads an archive by its index. Spec: sbus-record(5).

A write-ahead file becomes one Parquet file per hour, and an index entry for each.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from sbus_archive.record.checksums import MISMATCH, MISSING
from sbus_archive.record.index import read_index, write_entry
from sbus_archive.record.layout import HOUR_NS, IndexEntry, SegmentName, hour_of
from sbus_archive.record.schema import PARTITION_SCHEMA, SCHEMA, SORT_KEYS, RowKind
from sbus_archive.storage.files import RecordError, SegmentGoneError, create_private, draft_of, make_folder, publish_draft
from sbus_archive.storage.location import ArchivePath
from sbus_archive.storage.store import FileStore, store_of

ROW_GROUP_ROWS = 1 << 20
"""Rows of a row group. A million is read 5 to 15 % faster than a quarter of it, and segments rarely have more."""

COMPRESSION_LEVEL = 1
"""Level of zstd. Level 3 takes a fifth longer and does not give smaller files, measured with a day of traffic."""

_MISSING = (RowKind.TAP_LOSS.value, RowKind.GAP.value)


def write_segments(
    archive: Path,
    host: str,
    first_seq: int,
    table: pa.Table,
    *,
    uid: int | None = None,
    users: Mapping[int, int] | None = None,
    unnamed: int = 0,
) -> list[IndexEntry]:
    """Write *table*, rows of :data:`SCHEMA` of *host* in any order, as one segment per hour; return their index entries.

    *uid* is the user of all rows if the segments are dedicated. *users* are the bytes of each listed user, *unnamed* those of all
    others; both are
    in the entry of the first hour.

    Everything is durable on return: first the segments, each renamed when it is complete, then their entries. A repeated call with the same
    *first_seq* and rows writes the same files, so an interrupted conversion can be repeated.

    Raises:
        OSError: the archive cannot be written.
    """
    sizes = {str(user): size for user, size in (users or {}).items()}
    entries = []
    for hour, rows in _by_hour(table):
        entries.append(_write_segment(archive, SegmentName.at(hour, host, first_seq), rows, uid=uid, users=sizes, unnamed=unnamed))
        sizes, unnamed = {}, 0
    return entries


def _by_hour(table: pa.Table) -> list[tuple[int, pa.Table]]:
    """Return the rows of each hour, with its start in nanoseconds, in chronological order."""
    if not table.num_rows:
        return []
    ts = table.column("ts")
    bounds = pc.min_max(ts).as_py()
    first, last = hour_of(bounds["min"]), hour_of(bounds["max"])
    if first == last:
        return [(first, table)]
    # Arrow's division truncates, and hour_of rounds down; they are equal from 1970 on.
    hours = pc.divide(ts, HOUR_NS)
    return [(hour * HOUR_NS, table.filter(pc.equal(hours, hour))) for hour in sorted(pc.unique(hours).to_pylist())]


def _write_segment(
    archive: Path, name: SegmentName, rows: pa.Table, *, uid: int | None, users: Mapping[str, int], unnamed: int
) -> IndexEntry:
    """Write one segment and its index entry; return the entry."""
    rows = rows.select(SCHEMA.names).cast(SCHEMA).sort_by([(key, "ascending") for key in SORT_KEYS])
    target = archive / name.path
    make_folder(target.parent)
    with draft_of(target) as draft, create_private(draft) as stream:
        pq.write_table(rows, stream, compression="zstd", compression_level=COMPRESSION_LEVEL, row_group_size=ROW_GROUP_ROWS)
    with draft.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        os.fsync(stream.fileno())
        size = os.fstat(stream.fileno()).st_size
    publish_draft(draft, target)
    entry = dataclasses.replace(_entry(name, rows, size, digest), uid=uid, users=users, unnamed=unnamed)
    write_entry(archive, entry)
    return entry


def _entry(name: SegmentName, rows: pa.Table, size: int, digest: str) -> IndexEntry:
    """Return the index entry of a segment that was written."""
    ts, seq = (pc.min_max(rows.column(column)).as_py() for column in ("ts", "seq"))
    kinds = {item["values"]: item["counts"] for item in pc.value_counts(rows.column("kind")).to_pylist()}
    gone = rows.filter(pc.is_in(rows.column("kind"), pa.array(_MISSING)))
    kept, true = pc.binary_length(rows.column("payload")), rows.column("payload_bytes")
    return IndexEntry(
        path=name.path,
        date=name.date,
        hour=name.hour,
        host=name.host,
        rows=rows.num_rows,
        bytes=size,
        sha256=digest,
        min_ts=ts["min"],
        max_ts=ts["max"],
        first_seq=seq["min"],
        last_seq=seq["max"],
        kinds=kinds,
        missing=pc.sum(gone.column("lost")).as_py() or 0,
        payloads_cut=_count(pc.less(kept, true)),
        payloads_left_out=_count(pc.and_(pc.is_null(kept), pc.is_valid(true))),
    )


def _count(flags: pa.ChunkedArray) -> int:
    """Return the number of true *flags*; null is not counted."""
    return pc.sum(flags).as_py() or 0


@dataclass(frozen=True, slots=True)
class RecordReader:
    """The record in the directory or object store ``root``, of any number of hosts. Nothing is cached.

    With an object store, each method also raises StorageError if the store cannot be used.
    """

    root: ArchivePath

    def entries(self, *, removed: bool = False, unreadable: Callable[[RecordError], None] | None = None) -> list[IndexEntry]:
        """Return the index, ordered by date, hour, host and ``seq``; with *removed* also removed segments.

        With *unreadable*, entries that cannot be read are skipped, and *unreadable* is called with the error.

        Raises:
            RecordError: the directory does not exist, or an entry is damaged.
        """
        return [entry for entry in read_index(self.root, unreadable) if removed or not entry.is_removed]

    def path(self, entry: IndexEntry) -> ArchivePath:
        """Return the path of the segment of *entry*."""
        return self.root / entry.path

    def exists(self, entry: IndexEntry) -> bool:
        """Return whether the segment of *entry* exists."""
        return self._store.exists(entry.path)

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
        return _with_partition(table, entry).select(names)

    def read_batches(self, entry: IndexEntry, rows: int = 1 << 16) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one segment with the columns of :data:`SCHEMA`, at most *rows* at a time. Raises what :meth:`read` raises."""
        with self._open(entry) as file:
            try:
                yield from file.iter_batches(batch_size=rows)
            except (pa.ArrowException, OSError) as error:
                raise RecordError(self.path(entry), f"damaged segment: {_first_line(error)}") from None

    def scan(
        self, entry: IndexEntry, columns: Sequence[str], wanted: pc.Expression | None, rows: int, *, encoded: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield *columns* of :data:`SCHEMA` of the rows that match *wanted*, in the order of the file, at most *rows* at a time.

        Columns of text in *encoded* are dictionary arrays. Raises what :meth:`read` raises.
        """
        self._open(entry).close()
        source = self._store.source(entry.path)
        schema = SCHEMA if not encoded else pa.schema([_encoded(field) if field.name in encoded else field for field in SCHEMA])
        file_format = ds.ParquetFileFormat(dictionary_columns=list(encoded))
        try:
            # Little is read ahead, because Spark reads one segment per processor at the same time.
            if isinstance(source, Path):
                file = ds.dataset(source, format=file_format, schema=schema)
                yield from file.to_batches(list(columns), filter=wanted, batch_size=rows, batch_readahead=2, use_threads=False)
            else:
                part = file_format.make_fragment(source)
                yield from part.to_batches(schema, list(columns), wanted, rows, batch_readahead=2, use_threads=False)
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
            _, digest = self._store.digest(entry.path)
        except OSError as error:
            raise self._unreadable(entry, error) from None
        if digest != entry.sha256:
            raise RecordError(path, MISMATCH)

    @property
    def _store(self) -> FileStore:
        """The files of the archive."""
        return store_of(self.root)

    def _open(self, entry: IndexEntry) -> pq.ParquetFile:
        """Return the open file of a segment, after a check of its columns."""
        path = self.path(entry)
        try:
            file = pq.ParquetFile(self._store.source(entry.path), memory_map=False)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(entry, error) from None
        if not file.schema_arrow.equals(SCHEMA):
            file.close()
            raise RecordError(path, "not a segment: its columns are not those of sbus-record(5)")
        return file

    def _unreadable(self, entry: IndexEntry, error: Exception) -> RecordError:
        """Return the RecordError for an *error* at opening the segment of *entry*."""
        path = self.path(entry)
        if isinstance(error, FileNotFoundError):
            why = f"removed by the recorder: {entry.removed_because}" if entry.is_removed else MISSING
            return SegmentGoneError(path, why)
        if isinstance(error, OSError) and error.strerror:
            return RecordError(path, f"cannot read file: {error.strerror}")
        return RecordError(path, f"damaged segment: {_first_line(error)}")


def _encoded(field: pa.Field) -> pa.Field:
    """Return *field* as a column of dictionary arrays."""
    return pa.field(field.name, pa.dictionary(pa.int32(), field.type))


def _with_partition(table: pa.Table, entry: IndexEntry) -> pa.Table:
    """Return *table* with the columns of the directories."""
    for field, value in zip(PARTITION_SCHEMA, (entry.date, entry.hour, entry.host), strict=True):
        table = table.append_column(field, pa.repeat(pa.scalar(value, field.type), table.num_rows))
    return table


def _first_line(error: Exception) -> str:
    """Return the message of a library in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
