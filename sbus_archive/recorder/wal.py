"""The write-ahead log: received rows on disk, until they are in segments.

A file is a header and frames. Each frame is::

    length  u32, little endian: of the body
    crc32   u32, little endian: of the length and the body
    body    the header's JSON, or one Arrow IPC record batch with the columns of sbus-record(5)

The checksum covers the length, so a tail of zeros, which a file system may leave after a power failure, is not a frame. The format of Arrow
accepts such a tail as a batch, and most flipped bits as data.

An incomplete frame is the end of the file. A complete frame with a wrong checksum that is followed by correct ones is damage; the number of
its rows is computed from the ``seq`` before and after it.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyarrow import ipc

from sbus.protocol.errors import SbusError
from sbus_archive.record.layout import is_host
from sbus_archive.record.schema import SCHEMA, VERSION
from sbus_archive.storage.files import sync_folder

SUFFIX = ".wal"

SET_ASIDE = ".damaged"
"""Suffix of a file that is not a valid write-ahead log."""

_FRAME = struct.Struct("<II")

MAX_FRAME_BYTES = 1 << 30
"""Maximum length of a valid frame: the recorder writes about ten megabytes at once at most."""


class WalError(SbusError):
    """A file that is not a write-ahead log, or has another version. ``path`` is the file, ``reason`` says what is wrong."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def wal_path(folder: Path, first_seq: int) -> Path:
    """Return the file in *folder* whose first row has the position *first_seq*."""
    return folder / f"{first_seq:020}{SUFFIX}"


def wal_files(folder: Path) -> list[Path]:
    """Return the write-ahead files in *folder*, oldest first. Raises OSError."""
    return sorted(folder / name for name in os.listdir(folder) if name.endswith(SUFFIX) and name.removesuffix(SUFFIX).isdigit())


class WalWriter:
    """Writes one write-ahead file. After a failure the file contains what was durable before."""

    def __init__(self, path: Path, fd: int, size: int, first_seq: int) -> None:
        """Use :meth:`create`."""
        self.path = path
        self.first_seq = first_seq
        self.rows = 0
        """Number of durable rows."""
        self.size = size
        """Number of durable bytes."""
        self._fd = fd

    @classmethod
    def create(cls, folder: Path, host: str, first_seq: int) -> Self:
        """Create a file, durable on return, for rows of *host* from *first_seq* on.

        An existing file with that name is the rest of a failed attempt, without valid rows.

        Raises:
            OSError: it cannot be created; it is removed.
        """
        path = wal_path(folder, first_seq)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            head = _frame(json.dumps({"version": VERSION, "host": host, "first_seq": first_seq}).encode())
            _write_all(fd, head)
            os.fsync(fd)
            sync_folder(folder)
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        return cls(path, fd, len(head), first_seq)

    def append(self, batch: pa.RecordBatch) -> None:
        """Write *batch*, rows of SCHEMA; it is durable on return.

        Raises:
            OSError: it could not be written, and was removed as far as possible. Close the file, and create another.
        """
        frame = _frame(memoryview(batch.serialize()))
        try:
            _write_all(self._fd, frame)
            os.fdatasync(self._fd)
        except OSError:
            self._undo()
            raise
        self.size += len(frame)
        self.rows += batch.num_rows

    def close(self) -> None:
        """Close the file. It can be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _undo(self) -> None:
        """Cut off a frame that failed: its rows are counted as lost, so they must not appear."""
        try:
            os.ftruncate(self._fd, self.size)
            os.lseek(self._fd, self.size, os.SEEK_SET)
        except OSError:
            # The checksum decides then. In the worst case, rows appear that were counted as lost.
            return


@dataclass(slots=True)
class WalContent:
    """The content of a write-ahead file."""

    host: str
    first_seq: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    torn_bytes: int = 0
    """Bytes after the last complete frame: a write was interrupted."""
    damaged_frames: int = 0
    """Frames with a wrong checksum that are followed by correct ones."""
    missing_before: int = 0
    """Rows before the first position that were lost with another file."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(batch.num_rows for batch in self.batches)

    @property
    def last_seq(self) -> int:
        """The highest position of a row; one less than the first position if there is none."""
        return max((_last_seq(batch) for batch in self.batches), default=self.first_seq - 1)

    def missing_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield position and number of the rows of each damaged range."""
        expected = self.first_seq - self.missing_before
        for batch in self.batches:
            first = batch.column("seq")[0].as_py()
            if first > expected:
                yield expected, first - expected
            expected = _last_seq(batch) + 1


def read_wal(path: Path) -> WalContent:
    """Return the content of the file *path*: every complete batch.

    Raises:
        WalError: it has no header that this version reads.
        OSError: it cannot be read.
    """
    data = memoryview(path.read_bytes())
    frames = Frames(data)
    head = next(frames, None)
    if head is None:
        raise WalError(path, "not a write-ahead log: the first frame is incomplete")
    content = _content(path, head)
    for body in frames:
        batch = ipc.read_record_batch(pa.py_buffer(body), SCHEMA)
        if batch.num_rows:
            content.batches.append(batch)
    content.torn_bytes = len(data) - frames.end
    content.damaged_frames = frames.damaged
    return content


def set_aside(path: Path) -> Path:
    """Rename a file that :func:`read_wal` rejects, and return the new path. It is kept for inspection. Raises OSError."""
    aside = path.with_name(path.name + SET_ASIDE)
    path.rename(aside)
    return aside


class Frames:
    """The bodies of the correct frames of a file. After the iteration, ``end`` is the end of the last one, ``damaged`` counts wrong
    ones before it."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0
        self._wrong = 0
        self.end = 0
        self.damaged = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> memoryview:
        while (frame := self._take()) is not None:
            body, is_right = frame
            if is_right:
                self.end, self.damaged, self._wrong = self._at, self.damaged + self._wrong, 0
                return body
            if not self.end:
                # A file without a header is unusable.
                break
            # Its length may still be correct: the next frame decides.
            self._wrong += 1
        raise StopIteration

    def _take(self) -> tuple[memoryview, bool] | None:
        """Return the body of the next frame, and whether its checksum is correct; None if no frame fits."""
        start = self._at + _FRAME.size
        if start > len(self._data):
            return None
        length, crc = _FRAME.unpack_from(self._data, self._at)
        if not 0 < length <= min(MAX_FRAME_BYTES, len(self._data) - start):
            return None
        self._at = start + length
        body = self._data[start : self._at]
        return body, crc == _checksum(length, body)


def _content(path: Path, head: memoryview) -> WalContent:
    """Return the empty content for a header."""
    try:
        value = json.loads(bytes(head))
        version, host, first_seq = value["version"], value["host"], value["first_seq"]
    except (ValueError, KeyError, TypeError):
        raise WalError(path, "not a write-ahead log: the first frame is not a header") from None
    if version != VERSION:
        raise WalError(path, f"unsupported version {version!r}: this recorder reads version {VERSION}. Run the recorder that wrote it")
    if not isinstance(host, str) or not is_host(host) or not isinstance(first_seq, int):
        raise WalError(path, "not a write-ahead log: the header has no valid host or position")
    return WalContent(host, first_seq)


def _frame(body: bytes | memoryview) -> bytes:
    """Return *body* as a frame."""
    return b"".join((_FRAME.pack(len(body), _checksum(len(body), body)), body))


def _checksum(length: int, body: bytes | memoryview) -> int:
    """Return the checksum of a frame."""
    return zlib.crc32(body, zlib.crc32(length.to_bytes(4, "little")))


def _write_all(fd: int, data: bytes) -> None:
    """Write all of *data*. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _last_seq(batch: pa.RecordBatch) -> int:
    """Return the position of the last row of *batch*, which is not empty."""
    return int(batch.column("seq")[batch.num_rows - 1].as_py())
