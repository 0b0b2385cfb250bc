"""Segments: the rows that are written are read again, hour by hour; damaged and missing segments are reported."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus_archive.record.index import write_entry
from sbus_archive.record.layout import HOUR_NS, IndexEntry
from sbus_archive.record.schema import SCHEMA, SORT_KEYS, Row, RowKind, batch_of, rows_of
from sbus_archive.record.segments import RecordReader, write_segments
from sbus_archive.storage.files import RecordError, SegmentGoneError
from tests.support.examples import examples
from tests.support.records import NOON, message, numbered, rows


def table_of(some: list[Row]) -> pa.Table:
    return pa.Table.from_batches([batch_of(some)])


def file_of(archive: RecordReader, entry: IndexEntry) -> Path:
    """Return the path of the segment of *entry* in a local *archive*."""
    return Path(str(archive.path(entry)))


def _sort_key(row: Row) -> tuple[object, ...]:
    # Text sorts by its UTF-8, and what is null comes last.
    return (row.kind, row.key is None, (row.key or "").encode(), row.ts, row.seq)


@settings(max_examples=examples(40))
@given(st.lists(rows(), max_size=12).map(numbered))
def test_any_rows_come_back_sorted_in_their_hours(some: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = RecordReader(Path(folder))
        entries = write_segments(Path(folder), "alpha", 1, table_of(some))
        assert archive.entries() == entries
        found = [rows_of(archive.read(entry)) for entry in entries]
        assert sorted((row for segment in found for row in segment), key=lambda row: row.seq) == some
        assert [entry.hour for entry in entries] == sorted({12 + (row.ts - NOON) // HOUR_NS for row in some})
        for entry, segment in zip(entries, found, strict=True):
            assert segment == sorted(segment, key=_sort_key)
            assert all(12 + (row.ts - NOON) // HOUR_NS == entry.hour for row in segment)
            archive.verify(entry)


def test_the_sort_key_of_the_test_is_that_of_the_schema() -> None:
    assert SORT_KEYS == ("kind", "key", "ts", "seq")


def test_an_entry_describes_its_segment(tmp_path: Path) -> None:
    cut, left_out = message(2)._replace(payload=b"", payload_bytes=1), message(3)._replace(payload=None, payload_bytes=9)
    gone = [Row(NOON, 4, RowKind.GAP, lost=7), Row(NOON, 5, RowKind.TAP_LOSS, lost=3), Row(NOON, 6, RowKind.LOSS, lost=100)]
    (entry,) = write_segments(tmp_path, "alpha", 1, table_of([message(1), cut, left_out, *gone]))
    content = (tmp_path / entry.path).read_bytes()
    assert (entry.rows, entry.first_seq, entry.last_seq, entry.min_ts, entry.max_ts) == (6, 1, 6, NOON, NOON + 3_000)
    assert (entry.bytes, entry.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert entry.kinds == {"message": 3, "gap": 1, "tap_loss": 1, "loss": 1}
    assert (entry.missing, entry.payloads_cut, entry.payloads_left_out) == (10, 1, 1)


def test_a_second_time_writes_the_same_files(tmp_path: Path) -> None:
    table = table_of([message(seq, ts=NOON + seq * HOUR_NS // 3) for seq in range(10)])
    first = write_segments(tmp_path, "alpha", 1, table)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert write_segments(tmp_path, "alpha", 1, table) == first
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert len(before) == 2 * 4


def test_nothing_is_left_but_segments_and_entries(tmp_path: Path) -> None:
    write_segments(tmp_path, "alpha", 1, table_of([message(1)]))
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]


def test_a_segment_that_cannot_be_completed_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_a_part(_: pa.Table, stream: BinaryIO, **__: object) -> None:
        stream.write(b"a part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pq, "write_table", write_a_part)
    with pytest.raises(OSError, match="No space left"):
        write_segments(tmp_path, "alpha", 1, table_of([message(1)]))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_folder_that_cannot_be_written_is_an_oserror(tmp_path: Path) -> None:
    (tmp_path / "date=2026-11-20").write_text("in the way")
    with pytest.raises(OSError, match="date=2026-11-20"):
        write_segments(tmp_path, "alpha", 1, table_of([message(1)]))


ROWS = [message(seq, key=f"k/{seq}") for seq in range(1, 6)]


@pytest.fixture
def archive(tmp_path: Path) -> RecordReader:
    write_segments(tmp_path, "alpha", 1, pa.Table.from_batches([batch_of(ROWS)]))
    return RecordReader(tmp_path)


@pytest.fixture
def entry(archive: RecordReader) -> IndexEntry:
    return archive.entries()[0]


def test_the_folders_are_columns(archive: RecordReader, entry: IndexEntry) -> None:
    (row, *_) = archive.read(entry, ["host", "hour", "key", "date"]).to_pylist()
    assert row == {"host": "alpha", "hour": 12, "key": "k/1", "date": "2026-11-20"}
    assert archive.read(entry).column_names == [*SCHEMA.names, "date", "hour", "host"]


def test_batches_are_bounded_and_complete(archive: RecordReader, entry: IndexEntry) -> None:
    batches = list(archive.read_batches(entry, rows=2))
    assert max(batch.num_rows for batch in batches) <= 2
    assert [row for batch in batches for row in rows_of(batch)] == ROWS


def test_a_removed_segment_is_in_the_index_when_asked_for(archive: RecordReader, entry: IndexEntry) -> None:
    gone = dataclasses.replace(entry, removed_at=NOON, removed_because="retention")
    write_entry(Path(str(archive.root)), gone)
    file_of(archive, entry).unlink()
    assert archive.entries() == []
    assert archive.entries(removed=True) == [gone]
    with pytest.raises(SegmentGoneError, match="removed by the recorder: retention"):
        archive.read(gone)


def test_a_missing_segment_is_reported(archive: RecordReader, entry: IndexEntry) -> None:
    file_of(archive, entry).unlink()
    for look in (archive.read, archive.verify, lambda entry: list(archive.read_batches(entry))):
        with pytest.raises(SegmentGoneError, match="missing, but named in the index"):
            look(entry)


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_truncated_segment_is_reported(archive: RecordReader, entry: IndexEntry, keep: int) -> None:
    content = file_of(archive, entry).read_bytes()
    file_of(archive, entry).write_bytes(content[:keep])
    with pytest.raises(RecordError, match=r"parquet: damaged segment: .+"):
        archive.read(entry)
    with pytest.raises(RecordError, match="checksum"):
        archive.verify(entry)


def test_a_flipped_bit_is_found_by_the_checksum(archive: RecordReader, entry: IndexEntry) -> None:
    content = bytearray(file_of(archive, entry).read_bytes())
    content[len(content) // 2] ^= 1
    file_of(archive, entry).write_bytes(content)
    with pytest.raises(RecordError, match="checksum"):
        archive.verify(entry)


def test_a_foreign_parquet_file_is_reported(archive: RecordReader, entry: IndexEntry) -> None:
    pq.write_table(pa.Table.from_pylist([{"a": 1}]), file_of(archive, entry))
    with pytest.raises(RecordError, match="not a segment: its columns are not those of sbus-record"):
        archive.read(entry)
