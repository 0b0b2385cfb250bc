"""Descriptors of clients: which of them are blobs, and how they are opened again. Nothing here blocks.

A client can send any descriptor, and many system calls on a foreign one can block: fstat(2) and close(2) on FUSE, open(2) on a file with a
lease. F_GET_SEALS never does, because the kernel answers it for memfds and refuses it for everything else. So it comes first.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from sbusd.blob.refusals import Cause, Refusal
from sbusd.protocol.blobs import F_GET_SEALS, SEALS

_BLOCK_BYTES = 512
"""The unit of ``st_blocks``."""


def check_blob(fd: int, size: int, *, allow_sparse: bool) -> None:
    """Raise Refusal unless *fd* is a memfd of *size* bytes whose content can never change. The content is not read."""
    try:
        seals = fcntl.fcntl(fd, F_GET_SEALS)
    except OSError:
        raise Refusal(Cause.NOT_SEALED, "the descriptor is not a memfd; create one with memfd_create(2)") from None
    if seals & SEALS != SEALS:
        raise Refusal(Cause.NOT_SEALED, "the memfd is not sealed; add F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_WRITE")
    # From here on it is known to be a memfd, so the calls below do not block.
    if os.fstatvfs(fd).f_bsize != mmap.PAGESIZE:
        raise Refusal(Cause.HUGE_PAGES, "the memfd has huge pages, which readers could find missing; create it without MFD_HUGETLB")
    status = os.fstat(fd)
    if status.st_size != size:
        raise Refusal(Cause.SIZE, f"the memfd has {status.st_size} bytes, and the request says {size}")
    if not allow_sparse and status.st_blocks * _BLOCK_BYTES < size:
        missing = size - status.st_blocks * _BLOCK_BYTES
        raise Refusal(Cause.SPARSE, f"{missing} bytes of the memfd are not allocated, so readers would pay for them; write all bytes")


def is_sealed_memory(fd: int) -> bool:
    """Return whether *fd* is a memfd with all seals, whose close never waits. A file of a memory file system cannot have them."""
    try:
        return fcntl.fcntl(fd, F_GET_SEALS) & SEALS == SEALS
    except OSError:
        return False


def open_again(fd: int) -> int:
    """Return a new read-only descriptor of the memfd *fd*, with an offset of its own. Raises Refusal."""
    try:
        # O_NONBLOCK: otherwise its owner could delay this call by a lease, fcntl(2).
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Refusal(Cause.UNREADABLE, f"cannot open the memfd: {error.strerror}; do not change its mode, and set no lease") from None
