"""Files of the write-ahead into segments: each once, whatever goes wrong, and kept while the archive cannot be written."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus_archive.record.index import list_index
from sbus_archive.record.layout import HOUR_NS, IndexEntry
from sbus_archive.record.schema import Row, RowKind, batch_of
from sbus_archive.record.segments import RecordReader, write_segments
from sbus_archive.record.shipped import ListHeader, ShippedList
from sbus_archive.recorder.converter import Converter, convert, date_of_recorder
from sbus_archive.recorder.log_messages import (
    ARCHIVE_FAILED,
    ARCHIVE_RESUMED,
    DAMAGED,
    DATE,
    NOT_MERGED,
    NOT_SHIPPED,
    REMOVED,
    REMOVED_UNSHIPPED,
)
from sbus_archive.recorder.retention import Retention
from sbus_archive.recorder.wal import WalWriter, read_wal, wal_files, wal_path
from sbus_programs.wall_clock import Clocks
from tests.support.dates import fixed_date
from tests.support.examples import examples
from tests.support.recorder_fakes import RecordedLog, recorded
from tests.support.records import NOON, message, numbered, rows
from tests.support.relays import wait_for

GIB = 1 << 30


@pytest.fixture
def log() -> RecordedLog:
    return RecordedLog()


@pytest.fixture
def make(tmp_path: Path, log: RecordedLog) -> Callable[..., Converter]:
    (tmp_path / "archive").mkdir()
    (tmp_path / "spool").mkdir()

    def make(quota: int = GIB, failed: Callable[[], None] = lambda: None) -> Converter:
        retention = Retention(tmp_path / "archive", "alpha", quota, 1e9)
        retention.load()
        return Converter(tmp_path / "archive", retention, log, clock=fixed_date(NOON), failed=failed, retry_seconds=0.01)

    return make


def spooled(folder: Path, first: int, last: int) -> Path:
    """Write a file with the rows from *first* to *last*, one a batch."""
    writer = WalWriter.create(folder / "spool", "alpha", first)
    for seq in range(first, last + 1):
        writer.append(batch_of([message(seq)]))
    writer.close()
    return writer.path


def test_files_become_segments_and_go(tmp_path: Path, make: Callable[..., Converter]) -> None:
    converter = make()
    for first in (1, 4):
        converter.submit(spooled(tmp_path, first, first + 2))
    assert converter.waiting_bytes > 0
    converter.start()
    assert converter.close(30)
    assert (converter.failure, converter.segments, converter.waiting_bytes) == (None, 2, 0)
    assert [row.seq for row in recorded(tmp_path / "archive")] == [1, 2, 3, 4, 5, 6]
    assert wal_files(tmp_path / "spool") == []


@given(st.lists(st.lists(rows(), min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=examples(20))
def test_any_rows_reconnect_through_write_ahead_and_segments(tmp_path_factory: pytest.TempPathFactory, some: list[list[Row]]) -> None:
    folder = tmp_path_factory.mktemp("through")
    flat = numbered([row for batch in some for row in batch])
    writer = WalWriter.create(folder, "alpha", 1)
    for batch in some:
        writer.append(batch_of(batch, writer.rows + 1))
    writer.close()
    convert(folder / "archive", read_wal(writer.path))
    assert recorded(folder / "archive") == flat


def test_a_file_that_was_converted_and_not_removed_is_converted_again(tmp_path: Path, make: Callable[..., Converter]) -> None:
    path = spooled(tmp_path, 1, 3)
    convert(tmp_path / "archive", read_wal(path))
    converter = make()
    converter.submit(path)
    converter.start()
    assert converter.close(30)
    assert [row.seq for row in recorded(tmp_path / "archive")] == [1, 2, 3]
    assert len(RecordReader(tmp_path / "archive").entries()) == 1


def test_rows_of_two_hours_are_two_segments(tmp_path: Path, make: Callable[..., Converter]) -> None:
    make()
    writer = WalWriter.create(tmp_path / "spool", "alpha", 1)
    writer.append(batch_of([message(1), message(2, ts=NOON + HOUR_NS)]))
    writer.close()
    assert [entry.hour for entry in convert(tmp_path / "archive", read_wal(writer.path))] == [12, 13]


def test_an_unwritable_archive_is_logged_once_and_retried(
    tmp_path: Path, make: Callable[..., Converter], log: RecordedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = threading.Semaphore(0)
    full = threading.Event()
    full.set()

    def write_or_fail(archive: Path, host: str, first_seq: int, table: pa.Table, **_: object) -> list[IndexEntry]:
        tries.release()
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_segments(archive, host, first_seq, table)

    monkeypatch.setattr("sbus_archive.recorder.converter.write_segments", write_or_fail)
    converter = make()
    converter.submit(spooled(tmp_path, 1, 3))
    converter.start()
    for _ in range(3):
        assert tries.acquire(timeout=30)
    assert [event for event, _ in log.records] == [ARCHIVE_FAILED]
    full.clear()
    wait_for(lambda: converter.finished == 1, "the conversion")
    assert converter.close(30)
    assert [event for event, _ in log.records] == [ARCHIVE_FAILED, ARCHIVE_RESUMED]
    assert [row.seq for row in recorded(tmp_path / "archive")] == [1, 2, 3]


def test_a_defect_of_the_conversion_ends_it_although_the_archive_cannot_be_pruned(
    tmp_path: Path, make: Callable[..., Converter], log: RecordedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LookupError("a defect")

    def cannot(*_: object) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("sbus_archive.recorder.converter.write_segments", fail)
    monkeypatch.setattr(Retention, "prune", cannot)
    failed = threading.Event()
    converter = make(failed=failed.set)
    converter.submit(spooled(tmp_path, 1, 3))
    converter.start()
    assert not converter.close(30)
    assert isinstance(converter.failure, LookupError)
    assert failed.is_set(), "a recorder of an idle bus does not notice"
    assert log.records == []


def test_the_oldest_segments_go_while_no_segment_can_be_written(
    tmp_path: Path, make: Callable[..., Converter], log: RecordedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a full disk stays full."""
    archive = tmp_path / "archive"
    convert(archive, read_wal(spooled(tmp_path, 1, 1)))
    tries = threading.Semaphore(0)

    def fail(*_: object, **__: object) -> list[IndexEntry]:
        tries.release()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sbus_archive.recorder.converter.write_segments", fail)
    converter = make(quota=1)
    converter.submit(spooled(tmp_path, 2, 2))
    converter.start()
    for _ in range(2):
        assert tries.acquire(timeout=30)
    assert not converter.close(30)
    assert recorded(archive) == []
    assert [facts["because"] for facts in log.facts(REMOVED)] == ["quota"]
    assert [event for event, _ in log.records if event is ARCHIVE_FAILED] == [ARCHIVE_FAILED]


def test_at_the_end_a_file_that_cannot_be_converted_is_kept(tmp_path: Path, make: Callable[..., Converter], log: RecordedLog) -> None:
    converter = make()
    path = spooled(tmp_path, 1, 3)
    (tmp_path / "archive" / "date=2026-11-20").write_text("in the way")
    converter.submit(path)
    converter.start()
    assert not converter.close(30)
    assert converter.failure is None
    assert path.exists()
    assert len(log.facts(ARCHIVE_FAILED)) == 1


def test_a_damaged_stretch_is_in_the_record_as_a_count(tmp_path: Path, make: Callable[..., Converter], log: RecordedLog) -> None:
    converter = make()
    path = spooled(tmp_path, 1, 5)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    converter.submit(path)
    converter.start()
    assert converter.close(30)
    rows = recorded(tmp_path / "archive")
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5]
    assert [(row.seq, row.lost, row.ts) for row in rows if row.kind == RowKind.GAP] == [(3, 1, message(2).ts)]
    assert len(log.facts(DAMAGED)) == 1


def test_a_file_that_is_not_a_write_ahead_log_is_set_aside(tmp_path: Path, make: Callable[..., Converter], log: RecordedLog) -> None:
    converter = make()
    path = wal_path(tmp_path / "spool", 1)
    path.write_bytes(b"something else")
    converter.submit(path)
    converter.submit(spooled(tmp_path, 2, 2))
    converter.start()
    assert converter.close(30)
    assert [row.seq for row in recorded(tmp_path / "archive")] == [2]
    assert path.with_name(path.name + ".damaged").read_bytes() == b"something else"
    assert "; renamed to " in str(log.facts(DAMAGED)[0]["reason"])


def test_the_oldest_segments_go_when_the_quota_is_used_up(tmp_path: Path, make: Callable[..., Converter], log: RecordedLog) -> None:
    archive = tmp_path / "archive"
    for first in (1, 2, 3):
        path = spooled(tmp_path, first, first)
        convert(archive, read_wal(path))
        path.unlink()
    size = max(entry.bytes for entry in RecordReader(archive).entries())
    converter = make(quota=2 * size + size // 2)
    converter.start()
    converter.submit(spooled(tmp_path, 4, 4))
    assert converter.close(30)
    assert [row.seq for row in recorded(archive)] == [3, 4]
    removed = [entry for entry in RecordReader(archive).entries(removed=True) if entry.is_removed]
    assert [(entry.first_seq, entry.removed_because, entry.removed_at) for entry in removed] == [(1, "quota", NOON), (2, "quota", NOON)]
    assert sum(int(facts["segments"]) for facts in log.facts(REMOVED)) == 2


def test_a_mistake_of_the_recorder_itself_is_kept_for_its_loop(
    tmp_path: Path, make: Callable[..., Converter], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*_: object, **__: object) -> object:
        raise KeyError("a mistake")

    monkeypatch.setattr("sbus_archive.recorder.converter.write_segments", wrong)
    converter = make()
    converter.submit(spooled(tmp_path, 1, 1))
    converter.start()
    converter.close(30)
    assert isinstance(converter.failure, KeyError)
    assert len(wal_files(tmp_path / "spool")) == 1


@pytest.mark.parametrize("days", [40, 73 * 365, -40])
def test_a_jump_of_the_date_removes_no_segment(tmp_path: Path, log: RecordedLog, days: int) -> None:
    for name in ("spool", "archive"):
        (tmp_path / name).mkdir(exist_ok=True)
    error = 0
    retention = Retention(tmp_path / "archive", "alpha", GIB, 30 * 86_400.0)
    date = date_of_recorder(log, retention, clocks=Clocks(lambda: NOON + error, lambda: HOUR_NS))
    converter = Converter(tmp_path / "archive", retention, log, clock=date)
    converter.submit(spooled(tmp_path, 1, 5))
    converter.start()
    error = days * 24 * HOUR_NS
    converter.submit(spooled(tmp_path, 6, 9))
    assert converter.close(60)
    assert converter.is_date_doubted
    assert not any(entry.is_removed for entry in RecordReader(tmp_path / "archive").entries(removed=True))
    (jump,) = log.facts(DATE)
    assert str(jump["reason"]).startswith("the date jumped: expected 2026-")


def test_expired_segments_that_are_not_shipped_are_logged_once_and_those_that_the_quota_removes_too(
    tmp_path: Path, log: RecordedLog
) -> None:
    for name in ("spool", "archive"):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "shipped").write_bytes(ListHeader("s3://bucket/x", "alpha", "1").to_line())
    retention = Retention(tmp_path / "archive", "alpha", GIB, 1.0, shipped=ShippedList(tmp_path / "shipped"))
    converter = Converter(tmp_path / "archive", retention, log, clock=fixed_date(NOON + 24 * HOUR_NS))
    converter.submit(spooled(tmp_path, 1, 5))
    converter.submit(spooled(tmp_path, 6, 9))
    converter.start()
    assert converter.close(60)
    assert converter.held == 2
    assert [facts["reason"] for facts in log.facts(NOT_SHIPPED)] == ["sbus-ship has not shipped them yet"]
    small = Retention(tmp_path / "archive", "alpha", 1, 1.0, shipped=ShippedList(tmp_path / "shipped"))
    small.load()
    converter = Converter(tmp_path / "archive", small, log, clock=fixed_date(NOON + 24 * HOUR_NS))
    converter.submit(spooled(tmp_path, 10, 11))
    converter.start()
    assert converter.close(60)
    assert sum(int(facts["segments"]) for facts in log.facts(REMOVED)) == 3
    assert int(log.facts(REMOVED_UNSHIPPED)[-1]["segments"]) == 3


def test_index_entries_of_past_days_are_merged_when_nothing_waits(tmp_path: Path, log: RecordedLog) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    (tmp_path / "spool").mkdir()
    retention = Retention(archive, "alpha", GIB, 1e9)
    retention.load()
    converter = Converter(archive, retention, log, clock=fixed_date(NOON + 48 * HOUR_NS), retry_seconds=0.01)
    for first in (1, 4):
        converter.submit(spooled(tmp_path, first, first + 2))
    converter.start()
    assert converter.close(30)
    listing = list_index(archive)
    assert (listing.names, len(listing.days)) == ((), 1)
    assert [row.seq for row in recorded(archive)] == [1, 2, 3, 4, 5, 6]
    again = Retention(archive, "alpha", GIB, 1e9)
    again.load()
    assert (again.last_seq, again.bytes) == (6, retention.bytes)


def test_entries_that_are_not_shipped_or_not_readable_are_not_merged(tmp_path: Path, log: RecordedLog) -> None:
    archive = tmp_path / "archive"
    for seq in (1, 2):
        write_segments(archive, "alpha", seq, pa.Table.from_batches([batch_of([message(seq)])]))
    names = list_index(archive).names
    shipped = tmp_path / "shipped"
    shipped.write_bytes(ListHeader("s3://bucket/x", "alpha", "1").to_line() + names[0].encode() + b"\n")
    retention = Retention(archive, "alpha", GIB, 1e9, shipped=ShippedList(shipped))
    retention.load()
    (archive / "index" / names[0]).write_text("{")
    converter = Converter(archive, retention, log, clock=fixed_date(NOON + 48 * HOUR_NS))
    converter._work()
    assert list_index(archive).names == names
    assert [message for message, _ in log.records] == [NOT_MERGED]
