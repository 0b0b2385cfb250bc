"""The write-ahead log: truncated anywhere it yields its complete batches; zeros and flipped bits yield no rows."""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbus_archive.record.schema import Row, batch_of, rows_of
from sbus_archive.recorder.wal import Frames, WalContent, WalError, WalWriter, read_wal, set_aside, wal_files, wal_path
from tests.support.examples import examples
from tests.support.records import message, numbered, rows

BATCHES = [[message(1), message(2)], [message(3)], [message(4), message(5), message(6)]]


def write(folder: Path, batches: list[list[Row]] = BATCHES) -> tuple[Path, list[int]]:
    """Write a file; return it, and its size after its head and after each batch."""
    writer = WalWriter.create(folder, "alpha", 1)
    sizes = [writer.size]
    for batch in batches:
        writer.append(batch_of(batch))
        sizes.append(writer.size)
    writer.close()
    return writer.path, sizes


def rows_in(content: WalContent) -> list[Row]:
    return [row for batch in content.batches for row in rows_of(batch)]


def test_written_rows_are_read(tmp_path: Path) -> None:
    path, _ = write(tmp_path)
    content = read_wal(path)
    assert rows_in(content) == [row for batch in BATCHES for row in batch]
    assert (content.host, content.first_seq, content.last_seq, content.rows) == ("alpha", 1, 6, 6)
    assert (content.torn_bytes, content.damaged_frames, list(content.missing_ranges())) == (0, 0, [])


@given(st.lists(st.lists(rows(), min_size=1, max_size=3), max_size=4), st.randoms())
@settings(max_examples=examples(30))
def test_any_rows_cut_anywhere_give_the_whole_batches(
    tmp_path_factory: pytest.TempPathFactory, some: list[list[Row]], random: object
) -> None:
    folder = tmp_path_factory.mktemp("wal")
    flat = iter(numbered([row for batch in some for row in batch]))
    batches = [[next(flat) for _ in batch] for batch in some]
    path, sizes = write(folder, batches)
    content = path.read_bytes()
    assert isinstance(random, __import__("random").Random)
    cut = random.randint(sizes[0], len(content))
    path.write_bytes(content[:cut])
    whole = sum(size <= cut for size in sizes[1:])
    assert rows_in(read_wal(path)) == [row for batch in batches[:whole] for row in batch]


def test_every_cut_gives_the_whole_batches(tmp_path: Path) -> None:
    path, sizes = write(tmp_path)
    content = memoryview(path.read_bytes())
    for cut in range(sizes[0], len(content) + 1):
        frames = Frames(content[:cut])
        whole = sum(size <= cut for size in sizes)
        assert len(list(frames)) == whole
        assert (frames.end, frames.damaged) == (sizes[whole - 1], 0)


def test_a_head_truncated_anywhere_is_reported(tmp_path: Path) -> None:
    path, sizes = write(tmp_path)
    content = path.read_bytes()
    for cut in range(sizes[0]):
        path.write_bytes(content[:cut])
        with pytest.raises(WalError, match="the first frame is incomplete"):
            read_wal(path)


@pytest.mark.parametrize("zeros", [1, 7, 8, 9, 4096, 1 << 20])
def test_a_tail_of_zeros_is_not_a_frame(tmp_path: Path, zeros: int) -> None:
    path, _ = write(tmp_path)
    with path.open("ab") as file:
        file.write(bytes(zeros))
    content = read_wal(path)
    assert rows_in(content) == [row for batch in BATCHES for row in batch]
    assert (content.torn_bytes, content.damaged_frames) == (zeros, 0)


def test_zeros_instead_of_the_last_frame_are_not_a_frame(tmp_path: Path) -> None:
    path, sizes = write(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: sizes[2]] + bytes(len(content) - sizes[2]))
    assert rows_in(read_wal(path)) == [row for batch in BATCHES[:2] for row in batch]


def test_every_flipped_bit_costs_its_own_frame_and_is_found(tmp_path: Path) -> None:
    path, sizes = write(tmp_path)
    content = bytearray(path.read_bytes())
    bodies = list(Frames(memoryview(bytes(content))))
    for byte in range(sizes[0], len(content)):
        content[byte] ^= 1 << (byte % 8)
        frames = Frames(memoryview(bytes(content)))
        found = list(frames)
        content[byte] ^= 1 << (byte % 8)
        hit = sum(size <= byte for size in sizes)
        if byte - sizes[hit - 1] < 4:
            # The length is wrong, so the start of the next frame is unknown: found rows are right, and the rest is reported.
            assert found == bodies[:hit]
            assert frames.end == sizes[hit - 1]
        else:
            assert found == bodies[:hit] + bodies[hit + 1 :]
            assert frames.damaged == (hit < len(BATCHES))


def test_damaged_rows_are_known_by_their_positions(tmp_path: Path) -> None:
    path, sizes = write(tmp_path)
    content = bytearray(path.read_bytes())
    content[sizes[1] - 1] ^= 1
    content[sizes[2] - 1] ^= 1
    path.write_bytes(content)
    read = read_wal(path)
    assert rows_in(read) == BATCHES[2]
    assert list(read.missing_ranges()) == [(1, 3)]
    assert read.damaged_frames == 2


def _framed(head: bytes) -> bytes:
    crc = zlib.crc32(head, zlib.crc32(struct.pack("<I", len(head))))
    return struct.pack("<II", len(head), crc) + head


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"x", "not a header"),
        (b"[]", "not a header"),
        (b'{"version":1}', "not a header"),
        (json.dumps({"version": 99, "host": "a", "first_seq": 1}).encode(), r"version 99: this recorder reads version 1"),
        (json.dumps({"version": 1, "host": "../a", "first_seq": 1}).encode(), "no valid host or position"),
        (json.dumps({"version": 1, "host": "a", "first_seq": "1"}).encode(), "no valid host or position"),
    ],
)
def test_an_invalid_head_is_reported_with_the_file(tmp_path: Path, head: bytes, says: str) -> None:
    path = wal_path(tmp_path, 1)
    path.write_bytes(_framed(head))
    with pytest.raises(WalError, match=says) as caught:
        read_wal(path)
    assert str(path) in str(caught.value)


def test_a_batch_that_fails_is_not_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = WalWriter.create(tmp_path, "alpha", 1)
    writer.append(batch_of([message(1)]))

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("sbus_archive.recorder.wal.os.fdatasync", fail)
    with pytest.raises(OSError, match="Input/output"):
        writer.append(batch_of([message(2)]))
    writer.close()
    content = read_wal(writer.path)
    assert rows_in(content) == [message(1)]
    assert content.torn_bytes == 0
    assert writer.rows == 1


def test_a_file_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sbus_archive.recorder.wal.os.fsync", fail)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No space"):
        WalWriter.create(tmp_path, "alpha", 1)
    assert not list(tmp_path.iterdir())
    assert len(os.listdir("/proc/self/fd")) == before


def test_files_come_oldest_first_and_others_not_at_all(tmp_path: Path) -> None:
    for name in ("00000000000000000010.wal", "00000000000000000009.wal", ".lock", "x.wal", "00000000000000000001.wal.damaged"):
        (tmp_path / name).touch()
    assert [path.name for path in wal_files(tmp_path)] == ["00000000000000000009.wal", "00000000000000000010.wal"]


def test_files_set_aside_are_kept(tmp_path: Path) -> None:
    path = wal_path(tmp_path, 1)
    path.write_bytes(b"x")
    assert set_aside(path).read_bytes() == b"x"
    assert wal_files(tmp_path) == []
