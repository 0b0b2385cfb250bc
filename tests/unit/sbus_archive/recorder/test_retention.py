"""What is removed, in which order, and what stays in the index of it."""

from __future__ import annotations

import dataclasses
import errno
import os
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sbus_archive.record.index import write_entry
from sbus_archive.record.layout import HOUR_NS, IndexEntry, SegmentName
from sbus_archive.record.schema import batch_of
from sbus_archive.record.segments import RecordReader, write_segments
from sbus_archive.record.shipped import ListHeader, ShippedList
from sbus_archive.recorder.retention import Retention
from tests.support.records import NOON, message

if TYPE_CHECKING:
    from _typeshed import TraceFunction

DAY_SECONDS = 86_400.0
GIB = 1 << 30


def put(archive: Path, seq: int, ts: int, host: str = "alpha") -> int:
    """Write a segment of one row; return its size."""
    (entry,) = write_segments(archive, host, seq, pa.Table.from_batches([batch_of([message(seq, ts=ts)])]))
    return entry.bytes


def left(archive: Path) -> list[int]:
    """Return the first positions of the segments that are there, and check that the files agree."""
    entries = RecordReader(archive).entries(removed=True)
    assert all((archive / entry.path).exists() != entry.is_removed for entry in entries)
    return [entry.first_seq for entry in entries if not entry.is_removed]


def test_segments_go_when_their_time_is_over(tmp_path: Path) -> None:
    for hours in range(4):
        put(tmp_path, hours + 1, NOON + hours * HOUR_NS + HOUR_NS // 2)
    retention = Retention(tmp_path, "alpha", GIB, DAY_SECONDS)
    retention.load()
    day = int(DAY_SECONDS * 1e9)
    assert retention.prune(NOON + HOUR_NS + day - 1, 0) == {}
    assert retention.prune(NOON + HOUR_NS + day, 0)["retention", None].segments == 1
    assert left(tmp_path) == [2, 3, 4]
    assert retention.prune(NOON + 3 * HOUR_NS + day, 0)["retention", None].segments == 2
    assert left(tmp_path) == [4]


def test_the_oldest_go_until_the_quota_holds(tmp_path: Path) -> None:
    # Written last, and the oldest: of a clock that was set back.
    sizes = [put(tmp_path, seq, NOON + hours * HOUR_NS) for seq, hours in ((1, 1), (2, 2), (3, 0))]
    retention = Retention(tmp_path, "alpha", sum(sizes), DAY_SECONDS)
    retention.load()
    assert retention.bytes == sum(sizes)
    assert retention.prune(NOON, 0) == {}
    removed = retention.prune(NOON, 1)["quota", None]
    assert (removed.segments, removed.bytes) == (1, sizes[2])
    assert left(tmp_path) == [1, 2]
    assert retention.bytes == sizes[0] + sizes[1]
    assert not (tmp_path / "date=2026-11-20" / "hour=12").exists()


def test_segments_of_other_hosts_are_left_alone(tmp_path: Path) -> None:
    put(tmp_path, 1, NOON)
    put(tmp_path, 2, NOON, host="beta")
    retention = Retention(tmp_path, "alpha", 1, DAY_SECONDS)
    retention.load()
    retention.prune(NOON, 0)
    assert left(tmp_path) == [2]


def test_a_removal_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    put(tmp_path, 1, NOON)
    (entry,) = RecordReader(tmp_path).entries()
    write_entry(tmp_path, dataclasses.replace(entry, removed_at=NOON, removed_because="quota"))
    Retention(tmp_path, "alpha", GIB, DAY_SECONDS).load()
    assert left(tmp_path) == []


def test_a_segment_that_is_written_again_counts_once(tmp_path: Path) -> None:
    size = put(tmp_path, 1, NOON)
    retention = Retention(tmp_path, "alpha", GIB, DAY_SECONDS)
    retention.load()
    retention.add(RecordReader(tmp_path).entries())
    assert retention.bytes == size
    retention.prune(NOON + 100 * HOUR_NS, 0)
    assert retention.bytes == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_segment_is_removed_from_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Only the segment itself makes room for the entry that says that it is removed."""
    put(tmp_path, 1, NOON)
    put(tmp_path, 2, NOON + HOUR_NS)
    (first, second) = RecordReader(tmp_path).entries()
    is_full = True

    def write_if_room(archive: Path, entry: IndexEntry) -> None:
        if is_full or (archive / entry.path).exists():
            raise OSError(code, os.strerror(code))
        write_entry(archive, entry)

    monkeypatch.setattr("sbus_archive.recorder.retention.write_entry", write_if_room)
    retention = Retention(tmp_path, "alpha", second.bytes, DAY_SECONDS)
    retention.load()
    for _ in range(2):
        with pytest.raises(OSError, match=os.strerror(code)):
            retention.prune(NOON, 0)
    assert not (tmp_path / first.path).exists()
    assert (tmp_path / second.path).exists()
    is_full = False
    assert retention.prune(NOON, 0)["quota", None].segments == 1
    assert left(tmp_path) == [2]


def test_a_segment_stays_if_its_removal_cannot_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 1, NOON)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("sbus_archive.recorder.retention.write_entry", fail)
    retention = Retention(tmp_path, "alpha", 1, DAY_SECONDS)
    retention.load()
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        retention.prune(NOON, 0)
    assert left(tmp_path) == [1]


def test_a_file_that_cannot_be_removed_is_reported(tmp_path: Path) -> None:
    put(tmp_path, 1, NOON)
    retention = Retention(tmp_path, "alpha", 1, DAY_SECONDS)
    retention.load()
    (entry,) = RecordReader(tmp_path).entries()
    (tmp_path / entry.path).unlink()
    (tmp_path / entry.path).mkdir()
    with pytest.raises(OSError, match="parquet"):
        retention.prune(NOON, 0)


def work_of(users: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many instructions the recorder's own code takes to add a segment of each of *users*, twice, and to remove them all."""
    retention = Retention(Path("/nowhere"), "alpha", GIB, DAY_SECONDS)
    monkeypatch.setattr("sbus_archive.recorder.retention.write_entry", lambda *_: None)
    monkeypatch.setattr(retention, "_delete", lambda *_: None)
    entries = []
    for uid in range(users):
        name = SegmentName.at(NOON, "alpha", uid + 1)
        entries.append(IndexEntry(name.path, name.date, name.hour, "alpha", 1, 1_000 + uid % 7, "", NOON, NOON, uid + 1, uid + 1, uid=uid))
    count = 0

    def trace(frame: FrameType, what: str, _: object) -> TraceFunction | None:
        nonlocal count
        if "/sbus_archive/recorder/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        count += what == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for entry in entries * 2:
            retention.add([entry])
        removed = retention.prune(NOON, GIB)
    finally:
        sys.settrace(before)
    assert sum(each.segments for each in removed.values()) == users
    assert retention.bytes == 0
    return count


def test_the_work_of_cleaning_is_proportional_to_the_removed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a user with many numbers makes each removal slower for all. What is counted is work, not time."""
    few, many = (work_of(users, monkeypatch) for users in (50, 400))
    assert many < 2 * 8 * few


def _list_of(folder: Path, *names: str) -> ShippedList:
    """Write a list of shipped segments; return its reader."""
    lines = [ListHeader("s3://bucket/x", "alpha", "1" * 32).to_line(), *(f"{name}\n".encode() for name in names)]
    (folder / "shipped").write_bytes(b"".join(lines))
    return ShippedList(folder / "shipped")


def test_expired_segments_stay_until_they_are_shipped(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    for hours in range(3):
        put(archive, hours + 1, NOON + hours * HOUR_NS)
    names = [Path(entry.name.index_path).name for entry in RecordReader(archive).entries()]
    shipped = _list_of(tmp_path, names[1])
    retention = Retention(archive, "alpha", GIB, DAY_SECONDS, shipped=shipped)
    retention.load()
    later = NOON + 9 * int(DAY_SECONDS * 1e9)
    assert retention.prune(later, 0)["retention", None].segments == 1
    assert left(archive) == [1, 3]
    assert (retention.held, retention.held_because) == (2, "sbus-ship has not shipped them yet")
    assert retention.prune(later, 0) == {}
    with shipped.path.open("a") as stream:
        stream.write(f"{names[0]}\n{names[2]}")  # the last line is not complete
    assert retention.prune(later, 0)["retention", None].segments == 1
    assert (left(archive), retention.held) == ([3], 1)
    retention.load()
    with shipped.path.open("a") as stream:
        stream.write("\n")
    retention.prune(later, 0)
    assert (left(archive), retention.held, retention.bytes) == ([], 0, 0)


def test_the_quota_removes_segments_that_are_not_shipped_and_counts_them(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    sizes = [put(archive, seq, NOON + seq * HOUR_NS) for seq in (1, 2, 3)]
    names = [Path(entry.name.index_path).name for entry in RecordReader(archive).entries()]
    retention = Retention(archive, "alpha", sizes[2], DAY_SECONDS, shipped=_list_of(tmp_path, names[0]))
    retention.load()
    later = NOON + 9 * int(DAY_SECONDS * 1e9)
    removed = retention.prune(later, 0)
    assert (removed["retention", None].segments, removed["quota", None].segments) == (1, 1)
    assert (left(archive), retention.held) == ([3], 1)
    assert (retention.unshipped.segments, retention.unshipped.bytes) == (1, sizes[1])
    reasons = {entry.first_seq: entry.removed_because for entry in RecordReader(archive).entries(removed=True)}
    assert reasons == {1: "retention", 2: "quota", 3: None}


@pytest.mark.parametrize(("content", "says"), [(None, "no such file; sbus-ship creates it"), (b"x\n", "damaged list of shipped segments")])
def test_without_a_list_nothing_expires(tmp_path: Path, content: bytes | None, says: str) -> None:
    archive = tmp_path / "archive"
    put(archive, 1, NOON)
    if content is not None:
        (tmp_path / "shipped").write_bytes(content)
    retention = Retention(archive, "alpha", GIB, DAY_SECONDS, shipped=ShippedList(tmp_path / "shipped"))
    retention.load()
    assert retention.prune(NOON + 9 * int(DAY_SECONDS * 1e9), 0) == {}
    assert retention.held == 1
    assert says in retention.held_because
