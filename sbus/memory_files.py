"""Memory files of blobs: makes sealed ones from any data, and maps them. Nothing here waits, unless a file that it reads does."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO

from sbus.encoding import Data
from sbus.errors import BlobTooLarge
from sbus.protocol.blobs import F_ADD_SEALS, F_GET_SEALS, SEALS

try:
    from sbus.huge_pages import HUGE_PAGE_BYTES, Mapping, use_huge_pages

    IS_COMPILED = True
    """Whether memory files get huge pages where the kernel has them."""
except ImportError:  # a tree that is not built: everything works, but slower
    IS_COMPILED = False

BlobData = Data | os.PathLike[str] | BinaryIO
"""What a program can give as a blob: bytes, the path of a file, or an open file, which is read to its end."""

_MFD_NOEXEC_SEAL = 0x8

_CHUNK_BYTES = 1 << 20


def create_memory_file(name: str) -> int:
    """Return a new memfd that can be sealed and never be executed, as vm.memfd_noexec of Linux 6.3 can require. Raises OSError."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # an older kernel
            raise
        return os.memfd_create(name, flags)


def is_sealed(fd: int) -> bool:
    """Return whether *fd* is a memfd whose content never changes."""
    try:
        return fcntl.fcntl(fd, F_GET_SEALS) & SEALS == SEALS
    except OSError:
        return False


def map_file(fd: int, size: int) -> memoryview:
    """Return a read-only view of the memfd *fd* of *size* bytes; it keeps the mapping. Raises OSError."""
    if not size:
        return memoryview(b"")  # a mapping must not be empty
    if IS_COMPILED:
        return memoryview(Mapping(fd, size))
    return memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ))


@contextlib.contextmanager
def opened(data: BlobData) -> Iterator[Data | BinaryIO]:
    """Yield *data*; of the path of a file, the open file. Raises OSError."""
    if isinstance(data, os.PathLike):
        with open(data, "rb", buffering=0) as file:
            yield file
    else:
        yield data


def is_copied_file(data: BlobData) -> bool:
    """Return whether *data* is an open file that has to be read to its end, wherever that is: not bytes, and not a sealed memfd."""
    if isinstance(data, str | bytes | bytearray | memoryview | os.PathLike):
        return False
    fd = _descriptor(data)
    return fd is None or not is_sealed(fd)


def make_memfd(data: BlobData, limit: int | None = None) -> tuple[int, int]:
    """Return a new sealed memfd with *data*, and its size. A sealed memfd that is given as a file is not copied.

    *limit* is the largest number of bytes that are read from a file, None for any.

    Raises:
        TypeError: *data* is of another type.
        BlobTooLarge: a file has more than *limit* bytes.
        OSError: a file cannot be read, or there is not enough memory.
    """
    with opened(data) as source:
        if isinstance(source, str | bytes | bytearray | memoryview):
            content = memoryview(source.encode() if isinstance(source, str) else source).cast("B")
            fd = _new_file(len(content))
            with _closed_on_error(fd):
                _write(fd, content)
                return _sealed(fd)
        if not callable(getattr(source, "read", None)):
            raise TypeError(f"data must be bytes, str, a path or an open binary file, not {type(source).__name__}")
        original = _descriptor(source)
        if original is not None and is_sealed(original):
            return os.dup(original), os.fstat(original).st_size
        return _copy(source, limit)


def _copy(source: BinaryIO, limit: int | None) -> tuple[int, int]:
    """Return a new sealed memfd with what remains of *source*, and its size. Raises as :func:`make_memfd`."""
    expected, size = _expected_size(source), 0
    _check_size(source, expected, limit)
    fd = _new_file(expected)
    with _closed_on_error(fd):
        while chunk := _next_bytes(source.read(_CHUNK_BYTES), source):
            size += len(chunk)
            _check_size(source, size, limit)
            _write(fd, memoryview(chunk))
        os.ftruncate(fd, size)  # the file may have become smaller meanwhile
        return _sealed(fd)


def _next_bytes(chunk: bytes | str | None, source: BinaryIO) -> bytes:
    """Return *chunk*, which *source* has returned. Raises TypeError if it is a text file, and BlockingIOError if it does not block."""
    if chunk is None:
        raise BlockingIOError(errno.EAGAIN, "a file that does not block cannot be read to its end", _name(source))
    if isinstance(chunk, str):
        raise TypeError("data is an open text file; open it in binary mode")
    return chunk


def _check_size(source: BinaryIO, size: int, limit: int | None) -> None:
    """Raise BlobTooLarge if *size* is above *limit*."""
    if limit is not None and size > limit:
        raise BlobTooLarge(limit, _name(source))


def _expected_size(source: BinaryIO) -> int:
    """Return how many bytes probably remain in *source*, 0 if that is unknown."""
    fd = _descriptor(source)
    if fd is None:
        return 0
    status = os.fstat(fd)
    return max(0, status.st_size - source.tell()) if stat.S_ISREG(status.st_mode) else 0


def _descriptor(source: BinaryIO) -> int | None:
    """Return the descriptor of *source*, None if it has none."""
    # io.UnsupportedOperation, of a file in memory, is an OSError.
    try:
        return source.fileno()
    except (OSError, AttributeError):
        return None


def _name(source: BinaryIO) -> str:
    """Return the name of *source* for errors."""
    return str(getattr(source, "name", "data"))


def _new_file(size: int) -> int:
    """Return a new memfd for *size* bytes, all of which the caller writes."""
    fd = create_memory_file("sbus-blob")
    if IS_COMPILED and size >= HUGE_PAGE_BYTES:
        with _closed_on_error(fd):
            os.ftruncate(fd, size)
            use_huge_pages(fd, size)
    return fd


@contextlib.contextmanager
def _closed_on_error(fd: int) -> Iterator[None]:
    """Close *fd* if the block raises an exception."""
    try:
        yield
    except BaseException:
        os.close(fd)
        raise


def _write(fd: int, data: memoryview) -> None:
    """Write all of *data*."""
    while data:
        data = data[os.write(fd, data) :]


def _sealed(fd: int) -> tuple[int, int]:
    """Seal *fd*, and return it with its size."""
    fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    return fd, os.fstat(fd).st_size
