"""A log in anonymous memory that outlives the process: whoever holds its descriptor reads what was last committed, or learns
that it is damaged. Source: memfd_create(2).

::

    0       header: magic, format, where the log begins, how long it is, checksum of it, checksum of the header
    4096    the log: records, each a length and so many bytes

Rules:

1. What the header does not cover was never written: a record counts from when the header says so, and a new log replaces the old
   one with one write of the header. The header is a part of one page, which the kernel copies in one go: it looks for a fatal signal
   only between pages. So a process may be killed at any instant.
2. A new log, the draft, is written to one area of the file while the log that counts is in the other: both can grow. The memory of a
   log that does not count any more is given back before its area is used again. Writing a draft and giving memory back go in steps, so
   that a bus can serve its clients between them.
3. The checksums are against damage, not against malice: nobody but the bus's own user, and the service manager, can get at it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sbusd.protocol.errors import SbusError
from sbusd.state.syscalls import write_at

FORMAT = 2
"""Changed when an older bus must not read what a newer one writes."""

READABLE_FORMATS = (1, FORMAT)
"""Those that this bus reads. In format 1 the patterns of an image are strings in JSON, and a new log begins after the old one."""

PAGE = 4096

_MAGIC = b"sbusd\0st"
_HEADER = struct.Struct("<8sIQQI")
_CHECK = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_MFD_NOEXEC_SEAL = 0x8
"""Linux 6.3; not in Python."""
_READ_AT_ONCE = 1 << 20

_AREAS = (PAGE, 1 << 40)
"""Where a log can begin. The file has holes, and no log is a terabyte long."""

FREED_AT_ONCE = 256 << 10
"""Bytes of an old log whose memory one step gives back: some microseconds."""


class StateError(SbusError, ValueError):
    """The state of an earlier bus cannot be used; its text is one line that says why. Its connections are to be closed."""


@dataclass(slots=True)
class _Log:
    """A log: where it begins, how long it is, and the checksum of its bytes."""

    begin: int = PAGE
    length: int = 0
    checksum: int = 0


class StateFile:
    """One such log. Make it with :meth:`create` or :meth:`adopt`; not for two processes at a time."""

    def __init__(self, fd: int) -> None:
        """Take over the descriptor *fd*; use :meth:`create` or :meth:`adopt`."""
        self.fd = fd
        self._log = _Log()
        self._draft: _Log | None = None
        self._waste: _Log | None = None
        """A log that does not count, whose memory is not given back yet."""

    @classmethod
    def create(cls) -> StateFile:
        """Return a new, empty log. Raises OSError if the kernel gives no memory or descriptor."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            fd = os.memfd_create("sbusd-state", flags | _MFD_NOEXEC_SEAL)
        except OSError:
            fd = os.memfd_create("sbusd-state", flags)
        file = cls(fd)
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, PAGE)
        # Nobody can cut it short under a reader any more, nor take this back.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        file._commit()
        return file

    @classmethod
    def adopt(cls, fd: int) -> StateFile:
        """Return the log of an earlier process, from a duplicate of its descriptor.

        Raises:
            StateError: it is none, of another format, or damaged.
            OSError: there is no such descriptor, or none left.
        """
        file = cls(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3))
        try:
            file._read_header()
            file._check()
        except BaseException:
            file.close()
            raise
        return file

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return self._log.length

    @property
    def is_drafting(self) -> bool:
        """Whether there is a draft."""
        return self._draft is not None

    @property
    def has_waste(self) -> bool:
        """Whether an old log, or a draft that was dropped, still takes memory; see :meth:`free_some`."""
        return self._waste is not None

    def records(self) -> Iterator[bytes]:
        """Iterate over the records, oldest first."""
        place, end = self._log.begin, self._log.begin + self._log.length
        buffer, start = b"", 0
        while True:
            head = buffer[start : start + _LENGTH.size]
            needed = _LENGTH.size + int.from_bytes(head, "little") if len(head) == _LENGTH.size else _LENGTH.size
            if len(buffer) - start < needed or len(head) < _LENGTH.size:
                if place == end:
                    break
                more = _read(self.fd, place, min(max(needed, _READ_AT_ONCE), end - place))
                place += len(more)
                buffer, start = buffer[start:] + more, 0
                if not more:
                    break
                continue
            yield buffer[start + _LENGTH.size : start + needed]
            start += needed
        if start < len(buffer):
            raise StateError("its last record is truncated")

    def append(self, record: bytes) -> None:
        """Add a record, which counts once this returns. Raises OSError if there is no memory; then nothing has changed."""
        framed = _LENGTH.pack(len(record)) + record
        _write(self.fd, framed, self._log.begin + self._log.length)
        self._log.length += len(framed)
        self._log.checksum = zlib.crc32(framed, self._log.checksum)
        self._commit()

    def begin_draft(self) -> None:
        """Begin a new log, empty, which does not count until :meth:`commit_draft`. Not while there is waste."""
        if self._waste is not None or self._draft is not None:
            raise ValueError("the area for a draft is in use")
        self._draft = _Log(_AREAS[self._log.begin < _AREAS[1]])

    def add_to_draft(self, records: Iterable[bytes]) -> int:
        """Add *records* to the draft, and return their bytes. Raises OSError if memory is short; then drop the draft."""
        draft = self._begun_draft()
        framed = b"".join([part for record in records for part in (_LENGTH.pack(len(record)), record)])
        _write(self.fd, framed, draft.begin + draft.length)
        draft.length += len(framed)
        draft.checksum = zlib.crc32(framed, draft.checksum)
        return len(framed)

    def commit_draft(self) -> None:
        """Let the draft be the log from now on; the old log becomes waste."""
        self._log, self._draft, self._waste = self._begun_draft(), None, self._log
        self._commit()

    def revert(self) -> None:
        """Undo :meth:`commit_draft`, before any step of :meth:`free_some`: the log that counted before counts again."""
        if self._waste is None:
            raise ValueError("the log before is gone")
        self._log, self._waste = self._waste, self._log
        self._commit()

    def drop_draft(self) -> None:
        """Let the draft be waste, if there is one."""
        if self._draft is not None:
            self._draft, self._waste = None, self._draft

    def free_some(self) -> bool:
        """Give back the memory of :data:`FREED_AT_ONCE` bytes of waste, and return whether any is left.

        Where that fails, the memory is only not given back.
        """
        waste = self._waste
        if waste is None:
            return False
        size = min(_next_page(waste.length), FREED_AT_ONCE, max(0, os.fstat(self.fd).st_size - waste.begin))
        if size > 0:
            with contextlib.suppress(OSError), mmap.mmap(self.fd, size, offset=waste.begin) as mapped:
                mapped.madvise(mmap.MADV_REMOVE)
        waste.begin += size
        waste.length -= size
        if waste.length <= 0 or not size:
            self._waste = None
        return self._waste is not None

    def free_all(self) -> None:
        """Give back the memory of all waste, at once."""
        while self.free_some():
            pass

    def free_rest(self) -> None:
        """Give back all memory that the log does not take, at once: a process that was killed may have left some."""
        self.drop_draft()
        self.free_all()
        for start, end in ((PAGE, self._log.begin), (_next_page(self._log.begin + self._log.length), os.fstat(self.fd).st_size)):
            for begin, length in _data(self.fd, start, end):
                self._waste = _Log(begin, length)
                self.free_all()

    def draft_all(self, records: Iterable[bytes]) -> None:
        """Write a draft of *records* at once, in place of any other. Raises OSError, and there is no draft, if memory is short."""
        self.drop_draft()
        self.free_all()
        self.begin_draft()
        part: list[bytes] = []
        size = 0
        try:
            for record in records:
                part.append(record)
                size += len(record)
                if size >= _READ_AT_ONCE:
                    self.add_to_draft(part)
                    part, size = [], 0
            self.add_to_draft(part)
        except BaseException:
            # What was written of it counts for nobody, and memory is short.
            self.drop_draft()
            self.free_all()
            raise

    def replace(self, records: Iterable[bytes]) -> None:
        """Let *records* be the whole log, all at once. Raises OSError if there is no memory; then the old log still holds."""
        self.draft_all(records)
        self.commit_draft()
        self.free_all()

    def invalidate(self) -> None:
        """Let nobody read what is there: it is not what the bus knows any more. A draft that is committed makes it good again."""
        _write(self.fd, bytes(_HEADER.size + _CHECK.size), 0)
        if self._draft is None and self._waste is None:
            self._log, self._waste = _Log(self._log.begin), self._log

    def close(self) -> None:
        """Close this process's descriptor."""
        os.close(self.fd)

    def _begun_draft(self) -> _Log:
        """Return the draft. Raises ValueError if there is none."""
        if self._draft is None:
            raise ValueError("there is no draft")
        return self._draft

    def _commit(self) -> None:
        """Let what was written count."""
        header = _HEADER.pack(_MAGIC, FORMAT, self._log.begin, self._log.length, self._log.checksum)
        _write(self.fd, header + _CHECK.pack(zlib.crc32(header)), 0)

    def _check(self) -> None:
        """Raise StateError if the log is damaged."""
        place, end, checksum = self._log.begin, self._log.begin + self._log.length, 0
        while place < end:
            part = _read(self.fd, place, min(end - place, _READ_AT_ONCE))
            if not part:
                break
            place, checksum = place + len(part), zlib.crc32(part, checksum)
        if place != end or checksum != self._log.checksum:
            raise StateError("it is damaged")

    def _read_header(self) -> None:
        """Learn where the log is. Raises StateError."""
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink:
            raise StateError("it is not anonymous memory")
        data = _read(self.fd, 0, _HEADER.size + _CHECK.size)
        if len(data) < _HEADER.size + _CHECK.size or data[:8] != _MAGIC:
            raise StateError("it is not the state of a bus")
        header, check = data[: _HEADER.size], data[_HEADER.size :]
        if _CHECK.unpack(check)[0] != zlib.crc32(header):
            raise StateError("its head is damaged")
        _, version, begin, length, checksum = _HEADER.unpack(header)
        if version not in READABLE_FORMATS:
            raise StateError(f"it is of format {version}, and this bus reads format {' and '.join(map(str, READABLE_FORMATS))}")
        if begin < PAGE or begin + length > status.st_size:
            raise StateError("it is truncated")
        self._log = _Log(begin, length, checksum)


def _next_page(place: int) -> int:
    """Return where the next page begins."""
    return -(-place // PAGE) * PAGE


def _read(fd: int, place: int, length: int) -> bytes:
    """Return *length* bytes, or fewer where the file ends."""
    parts = []
    while length:
        part = os.pread(fd, min(length, _READ_AT_ONCE), place)
        if not part:
            break
        parts.append(part)
        place += len(part)
        length -= len(part)
    return b"".join(parts)


def _data(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Iterate over the parts of a file from *start* to *end* that take memory, as place and length. Source: lseek(2)."""
    while start < end:
        try:
            begin = os.lseek(fd, start, os.SEEK_DATA)
        except OSError:
            return
        if begin >= end:
            return
        start = min(os.lseek(fd, begin, os.SEEK_HOLE), end)
        yield begin, start - begin


def _write(fd: int, data: bytes, place: int) -> None:
    """Write all of *data*."""
    view = memoryview(data)
    while view:
        written = write_at(fd, view, place)
        view = view[written:]
        place += written
