"""Closes descriptors on threads: close(2) of a foreign descriptor can block as long as its sender likes.

Each user has at most two threads at a time, so a user delays only what this user has sent: one for descriptors, and one for connections
with unread descriptors, whose close never waits for a FUSE server. A signal interrupts a close that
waits in SO_LINGER, socket(7). One that waits for a FUSE server cannot be interrupted: it continues until that server answers or ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

MAX_THREADS = 64
"""Maximum number of threads: users who wait for a blocked close at the same time. Further users wait for a thread."""

PATIENCE_SECONDS = 0.002
"""How long a close may block before a signal interrupts it."""


_Queue = tuple[int, bool]
"""A user, and whether the descriptors are connections."""


class Closer:
    """The descriptors of one process that wait to be closed. Only its threads may block; every method returns at once."""

    def __init__(self, closed: Callable[[int], None]) -> None:
        """*closed* is called by a thread with the user of each descriptor that has been closed."""
        self._closed = closed
        self._lock = threading.Lock()
        self._waiting: dict[_Queue, deque[int]] = {}
        """The descriptors of each queue, without those that a thread closes now."""
        self._pending: dict[_Queue, int] = {}
        self._threads: dict[_Queue, threading.Thread] = {}
        self._has_work = threading.Event()
        self._rouser: threading.Thread | None = None

    def add(self, user: int, *fds: int) -> None:
        """Take over *fds* that *user* has sent, and close them."""
        self._add((user, False), fds)

    def add_connection(self, user: int, fd: int) -> None:
        """Take over the connection *fd* of *user*, which is shut down, and close it."""
        self._add((user, True), (fd,))

    def pending(self, user: int) -> int:
        """Return the number of descriptors that *user* has sent and that are not closed yet."""
        with self._lock:
            return self._pending.get((user, False), 0)

    @property
    def total(self) -> int:
        """The number of descriptors that are not closed yet."""
        with self._lock:
            return sum(self._pending.values())

    def _add(self, queue: _Queue, fds: tuple[int, ...]) -> None:
        """Close *fds* on the thread of *queue*."""
        if not fds:
            return
        with self._lock:
            self._waiting.setdefault(queue, deque()).extend(fds)
            self._pending[queue] = self._pending.get(queue, 0) + len(fds)
            self._start(queue)

    def _start(self, queue: _Queue) -> None:
        """Start a thread for *queue* unless there is one, or too many. The lock is held."""
        if queue in self._threads or len(self._threads) >= MAX_THREADS:
            return
        thread = threading.Thread(target=self._run, args=(queue,), name="closer", daemon=True)
        # Without memory for a thread, the descriptors wait until the next one is added.
        with contextlib.suppress(RuntimeError):
            thread.start()
            self._threads[queue] = thread
            if self._rouser is None:
                with contextlib.suppress(ValueError):
                    # Only a signal with a handler interrupts a close, and only the main thread can set the handler.
                    signal.signal(signal.SIGURG, lambda _number, _frame: None)
                self._rouser = threading.Thread(target=self._rouse, name="rouser", daemon=True)
                self._rouser.start()
            self._has_work.set()

    def _run(self, queue: _Queue) -> None:
        """Close the descriptors of *queue*, one after another, and then start the thread of a queue that waits for one."""
        while True:
            with self._lock:
                fds = self._waiting.get(queue)
                if not fds:
                    self._waiting.pop(queue, None)
                    self._threads.pop(queue, None)
                    for other in self._waiting:
                        self._start(other)
                    return
                fd = fds.popleft()
            _close(fd)
            with self._lock:
                self._pending[queue] -= 1
                if not self._pending[queue]:
                    del self._pending[queue]
            self._closed(queue[0])

    def _rouse(self) -> None:
        """Send signals to the threads while there are descriptors to close."""
        while True:
            self._has_work.wait()
            self._has_work.clear()
            while True:
                time.sleep(PATIENCE_SECONDS)
                # A thread leaves the table, under the lock, before it ends: so each of them is alive here.
                with self._lock:
                    if not self._threads:
                        break
                    for thread in self._threads.values():
                        if thread.ident is not None:
                            signal.pthread_kill(thread.ident, signal.SIGURG)


def hang_up(sock: socket.socket, user: int, closer: Closer) -> None:
    """End the connection *sock* of *user*. If unread packets have descriptors, *closer* closes it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    # The peer cannot send any more, so the answer stays true.
    if has_descriptors(sock):
        closer.add_connection(user, sock.detach())
    else:
        sock.close()


def has_descriptors(sock: socket.socket) -> bool:
    """Return whether unread packets of *sock* have descriptors; True if the kernel does not report it (before Linux 5.7)."""
    try:
        with open(f"/proc/self/fdinfo/{sock.fileno()}", encoding="ascii") as info:
            counts = [line.partition(":")[2] for line in info if line.startswith("scm_fds:")]
    except OSError:
        return True
    return not counts or int(counts[0]) > 0


def _close(fd: int) -> None:
    """Close *fd*; it is closed even if a signal interrupts that."""
    with contextlib.suppress(OSError):
        os.close(fd)
