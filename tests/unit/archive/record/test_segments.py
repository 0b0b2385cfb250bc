"""Segments: what goes in comes out, once, hour by hour, and what is known of it stands in the index."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbusd.archive.record.kinds import Kind
from sbusd.archive.record.layout import HOUR_NS
from sbusd.archive.record.reader import RecordReader
from sbusd.archive.record.schema import SORT_KEYS, Row, batch_of, rows_of
from sbusd.archive.record.segments import write_segments
from tests.support.records import NOON, message, numbered, rows


def table_of(some: list[Row]) -> pa.Table:
    return pa.Table.from_batches([batch_of(some)])


def _sort_key(row: Row) -> tuple[object, ...]:
    # Text sorts by its UTF-8, and what is null comes last.
    return (row.kind, row.key is None, (row.key or "").encode(), row.ts, row.seq)


@settings(max_examples=40, deadline=None)
@given(st.lists(rows(), max_size=12).map(numbered))
def test_any_rows_come_back_sorted_in_their_hours(some: list[Row]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = RecordReader(Path(folder))
        entries = write_segments(archive.root, "alpha", 1, table_of(some))
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


def test_an_entry_says_what_is_in_the_segment(tmp_path: Path) -> None:
    cut, left_out = message(2)._replace(payload=b"", payload_bytes=1), message(3)._replace(payload=None, payload_bytes=9)
    gone = [Row(NOON, 4, Kind.GAP, lost=7), Row(NOON, 5, Kind.TAP_LOSS, lost=3), Row(NOON, 6, Kind.LOSS, lost=100)]
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


def test_a_folder_that_cannot_be_written_is_an_oserror(tmp_path: Path) -> None:
    (tmp_path / "date=2026-11-20").write_text("in the way")
    with pytest.raises(OSError, match="date=2026-11-20"):
        write_segments(tmp_path, "alpha", 1, table_of([message(1)]))
