"""Descriptors of clients: which are blobs, how they are opened again, and how they are closed, which can block, on threads.

Sealed memory has threads of its own, because its close never waits for another process: what hostile users send cannot delay the end of
a blob. Of everything else, with connections that have unread descriptors, each user has one thread (:mod:`sbus_programs.owner_threads`).
A user whose close takes long *hangs*: no more descriptors are taken from it.

A client can send any descriptor, and many system calls on a foreign one can block: fstat(2) and close(2) on FUSE, open(2) on a file with a
lease. F_GET_SEALS never does, because the kernel answers it for memfds and refuses it for everything else. So it comes first.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import mmap
import os
import socket
from collections.abc import Callable

from sbus.protocol.blobs import F_GET_SEALS, SEALS
from sbus_programs.owner_threads import OwnerThreads
from sbus_programs.passed_descriptors import unread_descriptors
from sbus_services.blob.requests import Cause, Refusal

HANG_SECONDS = 1.0
"""A user whose close takes longer hangs."""

UNKNOWN = -1
"""The user of connections whose credentials cannot be read: no user pays for them, and all of them share one thread."""


class DescriptorKind(enum.Enum):
    """What is closed, with the maximum number of threads for it: together they are below TasksMax= of the unit."""

    MEMORY = 2
    """Sealed memory files: their close takes time to free pages, but never waits for another process."""
    FOREIGN = 192
    """Everything else that a client has sent, and connections with unread descriptors."""


class Closer:
    """The descriptors of one process that wait to be closed. Every method returns at once."""

    def __init__(self, closed: Callable[[int], None], close: Callable[[int], None] | None = None) -> None:
        """*closed* is called by a thread with the user of each descriptor that *close*, by default close(2), has closed."""
        self._threads = {kind: OwnerThreads(close or _close, lambda user, _fd: closed(user), kind.value) for kind in DescriptorKind}

    def add(self, user: int, kind: DescriptorKind, *fds: int) -> None:
        """Take over *fds* that *user* has sent, and close them. A connection is shut down already."""
        self._threads[kind].add(user, *fds)

    def pending(self, user: int) -> int:
        """Return the number of descriptors of *user* that are not closed yet."""
        return sum(threads.pending(user) for threads in self._threads.values())

    def is_hanging(self, user: int) -> bool:
        """Return whether a close of *user* takes longer than HANG_SECONDS."""
        return any(threads.busy_seconds(user) > HANG_SECONDS for threads in self._threads.values())

    @property
    def foreign(self) -> int:
        """The number of descriptors of all users that are not closed yet and whose close can block."""
        return self._threads[DescriptorKind.FOREIGN].total

    def largest(self) -> tuple[int, int]:
        """Return the user with the most of the :attr:`foreign` descriptors, and how many they are. Raises ValueError without any."""
        user = self._threads[DescriptorKind.FOREIGN].largest()
        return user, self._threads[DescriptorKind.FOREIGN].pending(user)

    @property
    def total(self) -> int:
        """The number of descriptors that are not closed yet."""
        return sum(threads.total for threads in self._threads.values())


def hang_up(sock: socket.socket, user: int, closer: Closer) -> None:
    """End the connection *sock* of *user*. If unread packets have descriptors, *closer* closes it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    # The peer cannot send any more, so the answer stays true.
    if unread_descriptors(sock):
        closer.add(user, DescriptorKind.FOREIGN, sock.detach())
    else:
        sock.close()


def _close(fd: int) -> None:
    """Close *fd*; it is closed even if a signal interrupts that."""
    with contextlib.suppress(OSError):
        os.close(fd)


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
