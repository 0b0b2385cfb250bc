"""Closes sockets whose unread packets carry descriptors, on a thread of its own: the last close of a strange file may sleep.

The thread is started with the first such socket, so a bus without hostile clients has none. It holds up nobody but those whose sockets
wait here too. Their number is bounded by the quota ``connections``: a connection counts until its socket is closed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from collections import deque
from collections.abc import Iterable, Iterator

from sbusd.daemon.ancillary import has_waiting

DRAIN_PACKETS = 4_096
"""Unread packets thrown away before a socket is closed; more than a socket buffer holds."""


class Closer:
    """The sockets of one process that wait to be closed. Only the thread itself may sleep; every method returns at once."""

    def __init__(self) -> None:
        self._fds: deque[tuple[int, int | None]] = deque()
        """Descriptors to close, each with its connection; the first is the one that the thread is at."""
        self._has_more = threading.Semaphore(0)
        self._closed: deque[int] = deque()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._event_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def fileno(self) -> int:
        """Return the descriptor that is readable when :meth:`take_closed` has something."""
        return self._event

    def add(self, fd: int, connection: int | None = None) -> None:
        """Close *fd*, a socket that is shut down already, which is this object's from now on. *connection* is reported when it is done."""
        self._fds.append((fd, connection))
        self._has_more.release()
        if self._thread is None:
            # Nobody waits for it: when the process exits, the kernel ends what it sleeps in.
            thread = threading.Thread(target=self._run, name="closer", daemon=True)
            # Without memory for a thread the socket stays open, and counts, until the next one is to be closed.
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def take_closed(self) -> list[int]:
        """Return the connections whose sockets have been closed since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fileno())
        return [self._closed.popleft() for _ in range(len(self._closed))]

    def waiting(self) -> list[int]:
        """Return the descriptors that are not closed yet."""
        return [fd for fd, _ in list(self._fds)]

    def close(self) -> None:
        """Report nothing more; what is not closed yet is closed all the same. Only :meth:`waiting` may be called after."""
        with self._event_lock:
            os.close(self._event)
            self._event = -1

    def _run(self) -> None:
        """Close one after another."""
        while True:
            self._has_more.acquire()
            fd, connection = self._fds[0]
            _close(fd)
            self._fds.popleft()
            if connection is not None:
                self._closed.append(connection)
                with self._event_lock:
                    if self._event >= 0:
                        os.eventfd_write(self._event, 1)


@functools.cache
def _closer() -> Closer:
    """Return the closer of sockets that are not a switch's."""
    return Closer()


def hang_up(fd: int) -> None:
    """Close the connected socket *fd* so that its peer sees the end, whoever else holds a duplicate; never sleeps."""
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
    """Close the sockets that the process before this one, which was started anew in place, had not closed yet."""
    for fd, inode in closing:
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_ino == inode:
                os.set_inheritable(fd, False)
                _closer().add(fd)


def _close(fd: int) -> None:
    """Close *fd*; its queue is emptied first, for a duplicate that lies elsewhere would keep what is in it."""
    peer = socket.socket(fileno=fd)
    with contextlib.suppress(OSError):
        for _ in range(DRAIN_PACKETS):
            # The end reads like a packet of no bytes, behind which others may hide.
            if not peer.recv(1, socket.MSG_DONTWAIT) and not has_waiting(fd):
                break
    peer.close()
