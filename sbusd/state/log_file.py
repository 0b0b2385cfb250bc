"""A log in anonymous memory that outlives the process: any holder of its descriptor can read the last committed state, or learns that
it is damaged. Source: memfd_create(2).

::

    0       header: magic, format, start of the log, its length, its checksum, checksum of the header
    4096    the log: records, each a length and that many bytes

Rules:

1. Only what the header covers exists: a record is committed by a write of the header, and so is a new log that replaces the old one. The
   header is inside one page, which the kernel copies at once: it checks for a fatal signal only between pages. So a process may be killed
   at any time.
2. A new log, the draft, is written to one area of the file while the current log is in the other; both can grow. The memory of an obsolete
   log is freed before its area is used again. A draft is written and memory is freed in steps, so that the bus serves its clients between
   them.
3. The checksums protect against damage, not against attacks: only the user of the bus and the service manager have access.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sbus.protocol.errors import SbusError
from sbusd.state.syscalls import write_at

_MFD_NOEXEC_SEAL = 0x8
"""Since Linux 6.3; Python does not have it."""


def create_memory_file(name: str) -> int:
    """Return a new memfd that can be sealed and never be executed, as vm.memfd_noexec of Linux 6.3 can require. Raises OSError."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # an older kernel
            raise
        return os.memfd_create(name, flags)


FORMAT = 1
"""Increased when an older bus must not read what a newer one writes."""

PAGE = 4096

_MAGIC = b"sbusd\0st"
_HEADER = struct.Struct("<8sIQQI")
_CHECK = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
_READ_AT_ONCE = 1 << 20

_AREAS = (PAGE, 1 << 40)
"""Where a log can start. The file has holes, and a log is always shorter than a terabyte."""

FREED_AT_ONCE = 256 << 10
"""Bytes of an obsolete log that one step frees, in some microseconds."""


class StateError(SbusError, ValueError):
    """The state of the previous process cannot be used; the text is one line. Its connections must be closed."""


@dataclass(slots=True)
class _Log:
    """The start of a log, its length, and the checksum of its bytes."""

    begin: int = PAGE
    length: int = 0
    checksum: int = 0


class StateFile:
    """One log. Use :meth:`create` or :meth:`adopt`. Only one process may use it at a time."""

    def __init__(self, fd: int) -> None:
        """Own the descriptor *fd*; use :meth:`create` or :meth:`adopt`."""
        self.fd = fd
        self._log = _Log()
        self._draft: _Log | None = None
        self._obsolete: _Log | None = None
        """An obsolete log whose memory is not freed yet."""

    @classmethod
    def create(cls) -> StateFile:
        """Return a new, empty log. Raises OSError if memory or descriptors are short."""
        fd = create_memory_file("sbusd-state")
        file = cls(fd)
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, PAGE)
        # No process can truncate it under a reader, nor remove the seals.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        file._commit()
        return file

    @classmethod
    def adopt(cls, fd: int) -> StateFile:
        """Return the log of the previous process, with a duplicate of its descriptor.

        Raises:
            StateError: it is not a log, has another format, or is damaged.
            OSError: the descriptor is not open, or descriptors are short.
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
        """Size of the log in bytes."""
        return self._log.length

    @property
    def has_obsolete(self) -> bool:
        """Whether an obsolete log or a dropped draft still uses memory; see :meth:`free_some`."""
        return self._obsolete is not None

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
        """Append a record, which is committed when this returns. Raises OSError if memory is short; then nothing has changed."""
        framed = _LENGTH.pack(len(record)) + record
        _write(self.fd, framed, self._log.begin + self._log.length)
        self._log.length += len(framed)
        self._log.checksum = zlib.crc32(framed, self._log.checksum)
        self._commit()

    def begin_draft(self) -> None:
        """Start a new, empty log, which is not valid before :meth:`commit_draft`. Not while there is an obsolete log."""
        if self._obsolete is not None or self._draft is not None:
            raise ValueError("the area for a draft is in use")
        self._draft = _Log(_AREAS[self._log.begin < _AREAS[1]])

    def add_to_draft(self, records: Iterable[bytes]) -> int:
        """Append *records* to the draft, and return their size in bytes. Raises OSError if memory is short; then drop the draft."""
        draft = self._begun_draft()
        framed = b"".join([part for record in records for part in (_LENGTH.pack(len(record)), record)])
        _write(self.fd, framed, draft.begin + draft.length)
        draft.length += len(framed)
        draft.checksum = zlib.crc32(framed, draft.checksum)
        return len(framed)

    def commit_draft(self) -> None:
        """Replace the log by the draft; the old log becomes obsolete."""
        self._log, self._draft, self._obsolete = self._begun_draft(), None, self._log
        self._commit()

    def revert(self) -> None:
        """Undo :meth:`commit_draft`, before any step of :meth:`free_some`."""
        if self._obsolete is None:
            raise ValueError("the previous log is gone")
        self._log, self._obsolete = self._obsolete, self._log
        self._commit()

    def drop_draft(self) -> None:
        """Make the draft obsolete, if there is one."""
        if self._draft is not None:
            self._draft, self._obsolete = None, self._draft

    def free_some(self) -> bool:
        """Free :data:`FREED_AT_ONCE` bytes of the obsolete log, and return whether there is more.

        A failure has no other effect than that the memory stays in use.
        """
        obsolete = self._obsolete
        if obsolete is None:
            return False
        size = min(_next_page(obsolete.length), FREED_AT_ONCE, max(0, os.fstat(self.fd).st_size - obsolete.begin))
        if size > 0:
            with contextlib.suppress(OSError), mmap.mmap(self.fd, size, offset=obsolete.begin) as mapped:
                mapped.madvise(mmap.MADV_REMOVE)
        obsolete.begin += size
        obsolete.length -= size
        if obsolete.length <= 0 or not size:
            self._obsolete = None
        return self._obsolete is not None

    def free_all(self) -> None:
        """Free the whole obsolete log at once."""
        while self.free_some():
            pass

    def free_rest(self) -> None:
        """Free all memory outside the log at once: a process that was killed may have left some."""
        self.drop_draft()
        self.free_all()
        for start, end in ((PAGE, self._log.begin), (_next_page(self._log.begin + self._log.length), os.fstat(self.fd).st_size)):
            for begin, length in _data(self.fd, start, end):
                self._obsolete = _Log(begin, length)
                self.free_all()

    def draft_all(self, records: Iterable[bytes]) -> None:
        """Write a draft of *records* at once, in place of any other. Raises OSError if memory is short; the draft is then dropped."""
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
            # The incomplete draft is useless, and there is not enough memory.
            self.drop_draft()
            self.free_all()
            raise

    def replace(self, records: Iterable[bytes]) -> None:
        """Replace the log by *records* at once. Raises OSError if memory is short; then the old log is still valid."""
        self.draft_all(records)
        self.commit_draft()
        self.free_all()

    def invalidate(self) -> None:
        """Invalidate the log, because it no longer has the current state. Committing a draft makes the file valid again."""
        _write(self.fd, bytes(_HEADER.size + _CHECK.size), 0)
        if self._draft is None and self._obsolete is None:
            self._log, self._obsolete = _Log(self._log.begin), self._log

    def close(self) -> None:
        """Close the descriptor of this process."""
        os.close(self.fd)

    def _begun_draft(self) -> _Log:
        """Return the draft. Raises ValueError if there is none."""
        if self._draft is None:
            raise ValueError("no draft was begun")
        return self._draft

    def _commit(self) -> None:
        """Commit what was written."""
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
        """Read the header. Raises StateError."""
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink:
            raise StateError("it is not anonymous memory")
        data = _read(self.fd, 0, _HEADER.size + _CHECK.size)
        if len(data) < _HEADER.size + _CHECK.size or data[:8] != _MAGIC:
            raise StateError("it is not the state of a bus")
        header, check = data[: _HEADER.size], data[_HEADER.size :]
        if _CHECK.unpack(check)[0] != zlib.crc32(header):
            raise StateError("its header is damaged")
        _, version, begin, length, checksum = _HEADER.unpack(header)
        if version != FORMAT:
            raise StateError(f"it is of format {version}, and this bus reads format {FORMAT}")
        if begin < PAGE or begin + length > status.st_size:
            raise StateError("it is truncated")
        self._log = _Log(begin, length, checksum)


def _next_page(place: int) -> int:
    """Return *place*, rounded up to the start of a page."""
    return -(-place // PAGE) * PAGE


def _read(fd: int, place: int, length: int) -> bytes:
    """Return *length* bytes, or fewer at the end of the file."""
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
    """Iterate over the parts of a file from *start* to *end* that use memory, as place and length. Source: lseek(2)."""
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
