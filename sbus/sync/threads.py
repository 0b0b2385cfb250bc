"""The threads that use one connection: one at a time changes its state, one reads, and the others wait for packets.

Rules:

1. The state of a link and of its session is read and changed only with the ``lock``, while ``is_inside``: in :meth:`Threads.run`, or in
   code that does the same without a call. A thread that has to wait releases the lock: :meth:`Threads.unlocked` and others do.
2. At most one thread, the reader, waits for the socket to become readable. The others wait here, each for its own condition.
3. A thread that changes something which others may wait for calls :meth:`Threads.notify`. When the reader has left, one of those who still
   wait becomes the reader: :meth:`Threads.hand_over`.
4. A signal handler, or a destructor, runs between two instructions of a thread. If that thread has the lock, the state may be half
   changed. The handler can then only leave something to it: ``late`` is done when the thread releases the lock. If the thread waits, the
   handler may change the state, but not wait for packets, since the thread that reads cannot go on before the handler ends.
5. An exception of a handler, such as KeyboardInterrupt, may come when any function has returned. So the lock is taken by ``with``, and
   what must be undone is undone without a call before it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import TypeVar

from sbus.operations import Deadline

T = TypeVar("T")

_ROOM_SECONDS = 0.05
"""Time that a thread waits for room in the socket before it looks whether the thread that reads has left."""


class _Waiter:
    """A thread that waits until ``is_done``. Unlike :class:`threading.Condition`, a signal handler never finds its lock taken."""

    __slots__ = ("_gate", "is_done", "thread")

    def __init__(self, is_done: Callable[[], bool]) -> None:
        self.is_done = is_done
        self.thread = get_ident()
        self._gate = threading.Lock()
        self._gate.acquire()

    def wait(self, seconds: float | None) -> bool:
        """Wait for :meth:`wake`, for at most *seconds*; return whether it was called."""
        return self._gate.acquire(timeout=-1 if seconds is None else seconds)

    def wake(self) -> None:
        """End the wait; harmless if that has been done."""
        with contextlib.suppress(RuntimeError):
            self._gate.release()


class Threads:
    """The lock of a link, the reader, and those who wait. *do_late* does what is in ``late``, and raises nothing; it needs the lock."""

    __slots__ = ("_closing", "_do_late", "_writers", "acquire", "is_inside", "late", "lock", "reader", "release", "waiting")

    def __init__(self, do_late: Callable[[], None]) -> None:
        self.lock = threading.RLock()
        """Reentrant, so that a signal handler is refused instead of waiting for its own thread."""
        self.acquire, self.release = self.lock.acquire, self.lock.release  # for the shortest use
        self.is_inside = False
        """Whether the thread with the lock may have changed a half of something."""
        self.reader = 0
        """The thread that reads, or connects again, a :func:`threading.get_ident`; it does not have the lock meanwhile. 0 is none."""
        self.waiting: list[_Waiter] = []
        """In the order in which they began to wait."""
        self.late: deque[Callable[[], object]] = deque()
        """What signal handlers have left to the thread with the lock, in their order."""
        self._do_late = do_late
        self._writers = 0  # threads that use the socket without the lock, and do not read
        self._closing: list[socket.socket] = []

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of *work*, which uses the state. Raises RuntimeError in a signal handler that has interrupted such use."""
        with self.lock:
            if self.is_inside:
                raise refusal()
            self.is_inside = True
            try:
                return work()
            finally:
                try:
                    if self.waiting:
                        self.hand_over()
                finally:
                    self.is_inside = False

    @property
    def is_held(self) -> bool:
        """Whether the caller has the lock, as :class:`threading.Condition` finds out."""
        return self.lock._is_owned()  # type: ignore[attr-defined,no-any-return]

    @property
    def has_reader(self) -> bool:
        """Whether a thread reads: another one, or that which this signal handler has interrupted."""
        return self.reader != 0

    @property
    def is_under_handler(self) -> bool:
        """Whether the caller is a signal handler whose thread cannot wait for packets before it ends."""
        return self.reader == get_ident() or self.is_held

    @property
    def is_socket_used(self) -> bool:
        """Whether a thread uses the socket without the lock; then it must not be closed."""
        return self.reader != 0 or self._writers > 0

    def unlocked(self, wait: Callable[[], T]) -> T:
        """Return the result of *wait*, called without the lock, as the reader; there must be no other reader.

        A signal handler may run after *wait*, and before this thread has the lock again: *wait* must not receive a packet.
        """
        try:
            self.reader = get_ident()
            return self._outside(wait)
        finally:
            self.reader = 0
            if self._closing:
                self._close_all()

    def poll_room(self, sock: socket.socket) -> int:
        """Wait a short time without the lock until *sock* has room, and return the events of poll(2)."""
        poller = select.poll()
        poller.register(sock, select.POLLOUT)
        ready = self.outside(partial(poller.poll, _ROOM_SECONDS * 1000))
        return ready[0][1] if ready else 0

    def outside(self, wait: Callable[[], T]) -> T:
        """Return the result of *wait*, called without the lock, but not as the reader: there may be another one."""
        try:
            self._writers += 1
            if self.waiting:
                self.hand_over()
            return self._outside(wait)
        finally:
            self._writers -= 1
            if self._closing:
                self._close_all()

    def _outside(self, wait: Callable[[], T]) -> T:
        """Return the result of *wait*, called without the lock. Raises RuntimeError in a handler whose thread has it."""
        self.is_inside = False
        try:
            self.lock.release()
            if self.is_held:
                raise refusal()
            if self.late:
                self._do_late()
            return wait()
        finally:
            try:
                self.lock.acquire()
            except BaseException:  # of a signal handler; what the caller undoes now needs the lock
                if not self.is_held:
                    self.lock.acquire()
                raise
            finally:
                self.is_inside = True

    def close(self, sock: socket.socket) -> None:
        """Close *sock*; if a thread uses it, wake that thread, which closes it: another file could get the descriptor's number."""
        if self.is_socket_used:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            self._closing.append(sock)
        else:
            sock.close()

    def _close_all(self) -> None:
        """Close the sockets that wait for it, if no thread uses them any more."""
        if not self.is_socket_used:
            while self._closing:
                self._closing.pop().close()

    def wait(self, is_done: Callable[[], bool], deadline: Deadline) -> None:
        """Wait until *is_done*, or until this thread may become the reader; may return early. Raises TimedOut, and as :meth:`run`."""
        if self.reader == get_ident():
            raise refusal()
        waiter = _Waiter(is_done)
        try:
            self.waiting.append(waiter)
            is_woken = self._outside(partial(waiter.wait, deadline.remaining()))
        finally:
            if waiter in self.waiting:  # not in a child process that a signal handler has forked
                self.waiting.remove(waiter)
        if not is_woken and not is_done():
            raise deadline.expired()

    def notify(self) -> None:
        """Wake the threads whose conditions hold."""
        for waiter in list(self.waiting):  # an exception of a signal handler may remove one at any time
            if waiter.is_done():
                waiter.wake()

    def hand_over(self) -> None:
        """Wake the threads whose conditions hold, and without a reader also one of the others, which reads from now on.

        Signal handlers run in the main thread. So a call in another thread can go on; of those in the main thread, only the last one can.
        """
        others: list[_Waiter] = []
        for waiter in list(self.waiting):
            if waiter.is_done():
                waiter.wake()
            else:
                others.append(waiter)
        if others and not self.reader:
            main = threading.main_thread().ident
            next((waiter for waiter in others if waiter.thread != main), others[-1]).wake()

    def forked(self) -> None:
        """Forget the other threads, which a child process does not have, and what its parent does late."""
        self.reader = self._writers = 0
        self.waiting.clear()
        self.late.clear()
        self._close_all()


def refusal() -> RuntimeError:
    """Return the error of a signal handler that cannot do what it wants before the interrupted call goes on."""
    return RuntimeError("this signal handler has interrupted a call of the same bus, and cannot make this one; let the handler set a flag")
