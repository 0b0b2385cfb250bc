"""Reading an archive: columns, batches, and what is damaged or gone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbusd.archive.errors import RecordError, SegmentGoneError
from sbusd.archive.record.index import IndexEntry, write_entry
from sbusd.archive.record.reader import RecordReader
from sbusd.archive.record.schema import SCHEMA, batch_of, rows_of, schema_of
from sbusd.archive.record.segments import write_segments
from tests.support.records import NOON, message

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
    write_entry(archive.root, gone)
    archive.path(entry).unlink()
    assert archive.entries() == []
    assert archive.entries(removed=True) == [gone]
    with pytest.raises(SegmentGoneError, match="removed by the recorder: retention"):
        archive.read(gone)


def test_a_segment_that_is_not_there_is_told(archive: RecordReader, entry: IndexEntry) -> None:
    archive.path(entry).unlink()
    for look in (archive.read, archive.verify, lambda entry: list(archive.read_batches(entry))):
        with pytest.raises(SegmentGoneError, match="missing, but named in the index"):
            look(entry)


@pytest.mark.parametrize("keep", [0, 3, 100, -1])
def test_a_segment_cut_short_is_told(archive: RecordReader, entry: IndexEntry, keep: int) -> None:
    content = archive.path(entry).read_bytes()
    archive.path(entry).write_bytes(content[:keep])
    with pytest.raises(RecordError, match=r"parquet: damaged segment: .+"):
        archive.read(entry)
    with pytest.raises(RecordError, match="checksum"):
        archive.verify(entry)


def test_a_flipped_bit_is_found_by_the_checksum(archive: RecordReader, entry: IndexEntry) -> None:
    content = bytearray(archive.path(entry).read_bytes())
    content[len(content) // 2] ^= 1
    archive.path(entry).write_bytes(content)
    with pytest.raises(RecordError, match="checksum"):
        archive.verify(entry)


def test_another_parquet_file_in_its_place_is_told(archive: RecordReader, entry: IndexEntry) -> None:
    pq.write_table(pa.Table.from_pylist([{"a": 1}]), archive.path(entry))
    with pytest.raises(RecordError, match="not a segment: its columns are not those of sbus-record"):
        archive.read(entry)


def test_segments_of_the_first_version_are_read_with_null_in_what_they_lack(archive: RecordReader, entry: IndexEntry) -> None:
    first = schema_of(1)
    assert first.names == SCHEMA.names[:-1]
    pq.write_table(pa.Table.from_batches([batch_of(ROWS)]).select(first.names).cast(first), archive.path(entry))
    assert rows_of(archive.read(entry)) == ROWS
    assert archive.read(entry, ["missed", "seq"]).to_pylist()[0] == {"missed": None, "seq": 1}
    assert [row for batch in archive.read_batches(entry) for row in rows_of(batch)] == ROWS
    assert pa.Table.from_batches(archive.scan(entry, ["missed"], None, 10)).to_pylist() == [{"missed": None}] * len(ROWS)
