"""Closes sockets whose unread packets carry descriptors, on separate threads: the last close of an unknown file may block.

The threads start with the first such socket, so a bus without hostile clients has none. After a moment a signal interrupts a close that
blocks, for example in SO_LINGER (socket(7)), so one socket cannot delay the next. A connection counts towards the quota ``connections``
until its socket is closed.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import itertools
import os
import queue
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from sbusd.dataplane.ancillary import has_waiting

DRAIN_PACKETS = 4_096
"""Unread packets that are dropped before a socket is closed; more than a socket buffer holds."""

DRAIN_BYTES = 65_536
"""Bytes that are dropped at once if the socket is a stream."""

THREADS = 8
"""How many sockets are closed at the same time."""

PATIENCE_SECONDS = 0.002
"""How long one close may block before a signal interrupts it."""

CROWD = 256
"""While so many sockets wait to be closed, no connection is accepted, because they could use up all descriptors."""


class Closer:
    """The sockets of one process that wait to be closed. Only its threads may block; every method returns at once."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._sockets: dict[int, tuple[int, int | None]] = {}
        """Descriptors that are not closed yet, each with its connection, by a unique number: the kernel uses descriptors again."""
        self._numbers = itertools.count()
        self._closed: deque[int] = deque()
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._event_lock = threading.Lock()
        self._threads: list[int] = []
        """The identities of the threads that close."""
        self._has_work = threading.Event()
        self._has_rouser = False

    def fileno(self) -> int:
        """Return the descriptor that is readable when :meth:`take_closed` has something."""
        return self._event

    def add(self, fd: int, connection: int | None = None) -> None:
        """Take over *fd*, a socket that is shut down already, and close it. *connection* is reported when that is done."""
        number = next(self._numbers)
        self._sockets[number] = fd, connection
        self._work.put(number)
        # If there is no memory for a thread, the socket stays open, and counts, until the next one is added.
        with contextlib.suppress(RuntimeError):
            if len(self._threads) < min(THREADS, len(self._sockets)):
                self._threads.append(_started(self._run))
            if not self._has_rouser:
                with contextlib.suppress(ValueError):
                    # Only a signal with a handler interrupts a close, and only the main thread can set the handler.
                    signal.signal(signal.SIGURG, lambda _number, _frame: None)
                _started(self._rouse)
                self._has_rouser = True
        self._has_work.set()

    def take_closed(self) -> list[int]:
        """Return the connections whose sockets have been closed since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fileno())
        return [self._closed.popleft() for _ in range(len(self._closed))]

    @property
    def is_crowded(self) -> bool:
        """Whether too many sockets wait to be closed."""
        return len(self._sockets) >= CROWD

    def waiting(self) -> list[int]:
        """Return the descriptors that are not closed yet."""
        return [fd for fd, _ in list(self._sockets.values())]

    def close(self) -> None:
        """Stop reporting. Sockets that are not closed yet will be. After this only :meth:`waiting` may be called."""
        with self._event_lock:
            os.close(self._event)
            self._event = -1

    def _run(self) -> None:
        """Close one socket after another."""
        while True:
            number = self._work.get()
            fd, connection = self._sockets[number]
            _close(fd)
            del self._sockets[number]
            if connection is not None:
                self._closed.append(connection)
                with self._event_lock:
                    if self._event >= 0:
                        os.eventfd_write(self._event, 1)

    def _rouse(self) -> None:
        """Send signals to the threads while there are sockets to close."""
        while True:
            self._has_work.wait()
            self._has_work.clear()
            while self._sockets:
                time.sleep(PATIENCE_SECONDS)
                for thread in list(self._threads):
                    signal.pthread_kill(thread, signal.SIGURG)


def _started(run: Callable[[], None]) -> int:
    """Start a thread that runs *run*, and return its identity. The process does not wait for it at its exit: the kernel interrupts it.

    Without the module threading, whose start() waits until the new thread runs: the loop would wait for the scheduler.
    """
    return _thread.start_new_thread(run, ())


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
