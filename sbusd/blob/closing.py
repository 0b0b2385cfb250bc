"""Closes descriptors on threads: close(2) of a foreign descriptor can block as long as its sender likes.

Sealed memory has threads of its own, because its close never waits for another process: what hostile users send cannot delay the end of
a blob. Of everything else, with connections that have unread descriptors, each user has one thread (:mod:`sbusd.owner_threads`).
A user whose close takes long *hangs*: no more descriptors are taken from it.
"""

from __future__ import annotations

import contextlib
import enum
import os
import socket
from collections.abc import Callable

from sbusd.owner_threads import OwnerThreads
from sbusd.passed_descriptors import unread_descriptors

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
