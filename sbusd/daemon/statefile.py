"""A log in anonymous memory that outlives the process: whoever holds its descriptor reads what was last committed, or learns
that it is damaged. Source: memfd_create(2).

::

    0       header: magic, format, where the log begins, how long it is, checksum of it, checksum of the header
    4096    the log: records, each a length and so many bytes

Rules:

1. What the header does not cover was never written: a record counts from when the header says so, and a new log replaces the old
   one with one write of the header. The header is a part of one page, which the kernel copies in one go: it looks for a fatal signal
   only between pages. So a process may be killed at any instant.
2. The checksums are against damage, not against malice: nobody but the bus's own user, and the service manager, can get at it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterable

from sbusd.protocol.errors import SbusError

FORMAT = 1
"""Changed when an older bus must not read what a newer one writes, in either direction of an upgrade."""

PAGE = 4096

_MAGIC = b"sbusd\0st"
_HEADER = struct.Struct("<8sIQQI")
_CHECK = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_MFD_NOEXEC_SEAL = 0x8
"""Linux 6.3; not in Python."""
_WRITTEN_AT_ONCE = 1 << 20


class StateError(SbusError, ValueError):
    """The state of an earlier bus cannot be used; its text is one line that says why. Its connections are to be closed."""


class StateFile:
    """One such log. Make it with :meth:`create` or :meth:`adopt`; not for two processes at a time."""

    def __init__(self, fd: int) -> None:
        """Take over the descriptor *fd*; use :meth:`create` or :meth:`adopt`."""
        self.fd = fd
        self._begin = PAGE
        self._length = 0
        self._sum = 0

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
            file.records()
        except BaseException:
            file.close()
            raise
        return file

    @property
    def size(self) -> int:
        """Bytes of the log."""
        return self._length

    def records(self) -> list[bytes]:
        """Return the records, oldest first. Raises StateError if they are damaged."""
        log = _read(self.fd, self._begin, self._length)
        if len(log) != self._length or zlib.crc32(log) != self._sum:
            raise StateError("it is damaged")
        records, place = [], 0
        while place < len(log):
            start = place + _LENGTH.size
            place = start + int.from_bytes(log[place:start], "little")
            records.append(log[start:place])
        return records

    def append(self, record: bytes) -> None:
        """Add a record, which counts once this returns. Raises OSError if there is no memory; then nothing has changed."""
        framed = _LENGTH.pack(len(record)) + record
        _write(self.fd, framed, self._begin + self._length)
        self._length += len(framed)
        self._sum = zlib.crc32(framed, self._sum)
        self._commit()

    def replace(self, records: Iterable[bytes]) -> None:
        """Let *records* be the whole log, all at once. Raises OSError if there is no memory; then the old log still holds."""
        before = self._begin, self._length, self._sum
        begin, length, checksum = _next_page(self._begin + self._length), 0, 0
        part = bytearray()
        try:
            for record in records:
                part += _LENGTH.pack(len(record)) + record
                if len(part) >= _WRITTEN_AT_ONCE:
                    length, checksum = self._flush(part, begin, length, checksum)
            length, checksum = self._flush(part, begin, length, checksum)
            self._begin, self._length, self._sum = begin, length, checksum
            self._commit()
        except BaseException:
            self._begin, self._length, self._sum = before
            # What was written of it counts for nobody, and memory is short.
            self._forget(begin, length + len(part))
            raise
        # Its places are never used again, so its memory can go: the file has no end to reach in this life.
        self._forget(before[0], before[1])

    def invalidate(self) -> None:
        """Let nobody read what is there: it is not what the bus knows any more. :meth:`replace` makes it good again."""
        _write(self.fd, bytes(_HEADER.size + _CHECK.size), 0)

    def close(self) -> None:
        """Close this process's descriptor."""
        os.close(self.fd)

    def _flush(self, part: bytearray, begin: int, length: int, checksum: int) -> tuple[int, int]:
        """Write a part of a log that does not count yet, and return its length and checksum so far."""
        _write(self.fd, part, begin + length)
        length, checksum = length + len(part), zlib.crc32(part, checksum)
        part.clear()
        return length, checksum

    def _commit(self) -> None:
        """Let what was written count."""
        header = _HEADER.pack(_MAGIC, FORMAT, self._begin, self._length, self._sum)
        _write(self.fd, header + _CHECK.pack(zlib.crc32(header)), 0)

    def _read_header(self) -> None:
        """Learn where the log is. Raises StateError."""
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink:
            raise StateError("it is no anonymous memory")
        data = _read(self.fd, 0, _HEADER.size + _CHECK.size)
        if len(data) < _HEADER.size + _CHECK.size or data[:8] != _MAGIC:
            raise StateError("it is not the state of a bus")
        header, check = data[: _HEADER.size], data[_HEADER.size :]
        if _CHECK.unpack(check)[0] != zlib.crc32(header):
            raise StateError("its head is damaged")
        _, version, self._begin, self._length, self._sum = _HEADER.unpack(header)
        if version != FORMAT:
            raise StateError(f"it is of format {version}, and this bus reads format {FORMAT}")
        if self._begin < PAGE or self._begin + self._length > status.st_size:
            raise StateError("it is cut short")

    def _forget(self, begin: int, length: int) -> None:
        """Give the memory of an old log back; where that fails it is only not given back."""
        size = min(_next_page(length), os.fstat(self.fd).st_size - begin)
        if size > 0:
            with contextlib.suppress(OSError), mmap.mmap(self.fd, size, offset=begin) as mapped:
                mapped.madvise(mmap.MADV_REMOVE)


def _next_page(place: int) -> int:
    """Return where the next page begins."""
    return -(-place // PAGE) * PAGE


def _read(fd: int, place: int, length: int) -> bytes:
    """Return *length* bytes, or fewer where the file ends."""
    parts = []
    while length:
        part = os.pread(fd, min(length, _WRITTEN_AT_ONCE), place)
        if not part:
            break
        parts.append(part)
        place += len(part)
        length -= len(part)
    return b"".join(parts)


def _write(fd: int, data: bytes | bytearray, place: int) -> None:
    """Write all of *data*."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, place)
        view = view[written:]
        place += written
