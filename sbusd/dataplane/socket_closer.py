"""Closes sockets whose unread packets carry descriptors, on separate threads: the last close of an unknown file may block.

The threads start with the first such socket, so a bus without hostile clients has none. Each user has one
(:mod:`sbus_programs.owner_threads`), so a user delays only the sockets of its own. A connection counts
towards the quota ``connections`` until its socket is closed.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from sbus_programs.owner_threads import OwnerThreads
from sbusd.dataplane.ancillary import has_waiting
from sbusd.dataplane.peer import credentials_of

DRAIN_PACKETS = 4_096
"""Unread packets that are dropped before a socket is closed; more than a socket buffer holds."""

DRAIN_BYTES = 65_536
"""Bytes that are dropped at once if the socket is a stream."""

THREADS = 128
"""How many users can have a socket that is being closed at the same time."""

MAX_SOCKETS = 256
"""With this number of sockets to close, no connection is accepted, because they could use up all descriptors: also a refused connection
can have descriptors, and only an accepted one can be refused. Linux 6.16 and later refuses them instead."""

UNKNOWN = -1
"""The user of sockets whose credentials cannot be read."""


class Closer:
    """The sockets of one process that wait to be closed. Only its threads may block; every method returns at once."""

    def __init__(self, close: Callable[[int], None] | None = None) -> None:
        """*close* closes a socket, after its unread packets."""
        self.charged: Callable[[int], int] = int
        """Returns the user that is charged for a uid."""
        self._close = close or _close
        self._threads = OwnerThreads(self._close_one, self._report, THREADS)
        self._sockets: dict[int, tuple[int, int | None]] = {}
        """Descriptors that are not closed yet, each with its connection, by a unique number: the kernel uses descriptors again."""
        self._numbers = itertools.count()
        self._closed: deque[int] = deque()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._event_lock = threading.Lock()
        _closers.add(self)

    def fileno(self) -> int:
        """Return the descriptor that is readable when :meth:`take_closed` has something."""
        return self._event

    def add(self, fd: int, connection: int | None = None) -> None:
        """Take over *fd*, a socket that is shut down already, and close it. *connection* is reported when that is done."""
        try:
            user = self.charged(credentials_of(fd).uid)
        except OSError:
            user = UNKNOWN
        number = next(self._numbers)
        self._sockets[number] = fd, connection
        self._threads.add(user, number)

    def take_closed(self) -> list[int]:
        """Return the connections whose sockets have been closed since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fileno())
        return [self._closed.popleft() for _ in range(len(self._closed))]

    @property
    def is_full(self) -> bool:
        """Whether too many sockets wait to be closed."""
        return len(self._sockets) >= MAX_SOCKETS

    def waiting(self) -> list[int]:
        """Return the descriptors that are not closed yet."""
        return [fd for fd, _ in list(self._sockets.values())]

    def hold(self, until: float) -> bool:
        """Begin no further close, and wait *until* a time of the monotonic clock; return whether none runs any more."""
        return self._threads.hold(until)

    def let_go(self) -> None:
        """Begin closes again."""
        self._threads.let_go()

    def close(self) -> None:
        """Stop reporting. Sockets that are not closed yet will be. After this only :meth:`waiting` may be called."""
        with self._event_lock:
            os.close(self._event)
            self._event = -1

    def _close_one(self, number: int) -> None:
        """Close a socket; called by a thread."""
        self._close(self._sockets[number][0])

    def _report(self, _user: int, number: int) -> None:
        """Report that a socket is closed; called by a thread."""
        _, connection = self._sockets.pop(number)
        if connection is not None:
            self._closed.append(connection)
            with self._event_lock:
                if self._event >= 0:
                    os.eventfd_write(self._event, 1)


_closers: weakref.WeakSet[Closer] = weakref.WeakSet()
"""All closers of this process."""


@contextlib.contextmanager
def held(seconds: float) -> Iterator[bool]:
    """Let no further close begin in this block, which is given whether those that have begun have ended within *seconds*."""
    until = time.monotonic() + seconds
    closers = list(_closers)
    try:
        yield all(each.hold(until) for each in closers)
    finally:
        for each in closers:
            each.let_go()


@functools.cache
def _closer() -> Closer:
    """Return the closer of sockets that belong to no switch."""
    return Closer()


def hang_up(fd: int) -> None:
    """Close the connected socket *fd* so that its peer sees the end even if another process holds a duplicate; never blocks."""
    peer = socket.socket(fileno=fd)
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
    if has_waiting(fd):
        _closer().add(peer.detach())
    else:
        peer.close()


def waiting() -> list[int]:
    """Return the descriptors given to :func:`hang_up` that are not closed yet."""
    return _closer().waiting()


def identified(fds: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Return those of *fds* that are open, each with its inode."""
    for fd in fds:
        with contextlib.suppress(OSError):
            yield fd, os.fstat(fd).st_ino


def resume(closing: Iterable[tuple[int, int]]) -> None:
    """Close the sockets that this process had not closed yet when it was replaced by execve(2)."""
    for fd, inode in closing:
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_ino == inode:
                os.set_inheritable(fd, False)
                _closer().add(fd)


def _close(fd: int) -> None:
    """Close *fd*. Its queue is emptied first, because a duplicate elsewhere would keep the packets."""
    peer = socket.socket(fileno=fd)
    size = 1 if peer.type is socket.SOCK_SEQPACKET else DRAIN_BYTES
    for _ in range(DRAIN_PACKETS):
        try:
            data = peer.recv(size, socket.MSG_DONTWAIT)
        except OSError:
            # ECONNRESET: the peer has closed without reading all packets. Those that it sent come next.
            data = b""
        # The end looks like a packet of no bytes, after which there may be others.
        if not data and not has_waiting(fd):
            break
    peer.close()
