"""Writes segments: the sorted rows of one write-ahead file, one Parquet file per hour, and their index entries. Spec: sbus-record(5)."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sbusd.archive.private_files import create_private, make_folder
from sbusd.archive.record.index import IndexEntry, publish_draft, write_entry
from sbusd.archive.record.kinds import Kind
from sbusd.archive.record.layout import HOUR_NS, SegmentName, hour_of, temporary
from sbusd.archive.record.schema import SCHEMA, SORT_KEYS

ROW_GROUP_ROWS = 1 << 20
"""Rows of a row group. A million is read 5 to 15 % faster than a quarter of it, and segments rarely have more."""

COMPRESSION_LEVEL = 1
"""Level of zstd. Level 3 takes a fifth longer and does not give smaller files, measured with a day of traffic."""

_MISSING = (Kind.TAP_LOSS.value, Kind.GAP.value)


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
    draft = temporary(target)
    with create_private(draft) as stream:
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
