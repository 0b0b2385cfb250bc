"""The threads that use one connection: one at a time changes its state, one reads, and the others wait for packets.

Rules:

1. The state of a link and of its session is read and changed only between :meth:`Threads.enter` and :meth:`Threads.exit`, by one thread at
   a time, which does not wait meanwhile: it waits in :meth:`Threads.unlocked` and :meth:`Threads.wait`.
2. At most one thread, the reader, waits for the socket to become readable. The others wait here, each for its own condition.
3. A thread that changes something which others may wait for calls :meth:`Threads.notify`. At :meth:`Threads.exit`, when the reader has
   left, one of those who still wait becomes the reader.
4. As long as one thread alone has used the link, it is the owner, and takes no lock: that would cost as much as the rest of a short call.
   Another thread takes the lock, ends the ownership for good, and then waits until the owner is outside. Each of the two first says what it
   does, and then looks at what the other has said, so that one of them sees the other (Dekker's algorithm).
5. A signal handler runs between two instructions of a thread. If that thread is inside, or has taken the lock to get inside, the state may
   be half changed, and others cannot use it, so the handler is refused. If the thread waits outside, the handler may do everything, but the
   thread cannot go on before the handler ends. An exception of a handler, such as KeyboardInterrupt, can also prevent :meth:`Threads.exit`;
   the next call of that thread finds that it has left, and makes up for it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from threading import get_ident
from types import FrameType
from typing import TypeVar

from sbusd.client.operations import Deadline

T = TypeVar("T")

_ROOM_SECONDS = 0.05
"""Time that a thread waits for room in the socket before it looks whether the thread that reads has left."""

_OWNER_SECONDS = 0.000_05
"""Time between two looks whether the owner is outside; it is inside for microseconds."""

_OWNER_MOST_SECONDS = 10.0
"""Time after which the owner is taken to have left without a word: no machine is so slow."""


class _Waiter:
    """A thread that waits until ``is_done``.

    Without :class:`threading.Condition`, in which a signal handler could find the lock taken.
    """

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
    """The lock of a link, the thread inside, the reader, and those who wait. A thread is its :func:`threading.get_ident`; 0 is none."""

    __slots__ = ("_closing", "_is_shared", "_lock", "_writers", "alone", "inside", "owner", "reader", "waiting")

    def __init__(self) -> None:
        self.owner = 0
        """The only thread that has used the link so far."""
        self.alone = 0
        """The owner, while it is inside without the lock; only the owner sets it."""
        self.inside = 0
        """The thread that is inside with the lock; only a thread that holds the lock sets it."""
        self.reader = 0
        """The thread that reads, or connects again; it is outside meanwhile."""
        self.waiting: list[_Waiter] = []
        """In the order in which they began to wait."""
        self._is_shared = False
        self._lock = threading.RLock()  # reentrant for signal handlers
        self._writers = 0  # threads outside that do not read
        self._closing: list[socket.socket] = []

    def enter(self) -> None:
        """Begin to use the state. Raises RuntimeError in a signal handler that has interrupted such use."""
        thread = get_ident()
        if thread in (self.alone, self.inside, self.reader):
            self._enter_again(thread)
        self._go_inside(thread)

    @property
    def is_interrupted(self) -> bool:
        """Whether the caller is a signal handler that has interrupted a call of the same bus, and is refused by :meth:`enter`."""
        return self._is_inside(get_ident()) and _has_interrupted_call(self)

    def exit(self) -> None:
        """End the use of the state, and wake the threads that can go on. Harmless if this thread is outside, after an interruption."""
        thread = get_ident()
        if self.reader == thread and thread not in (self.alone, self.inside) and not _has_interrupted_call(self):
            self.reader = 0
        try:
            if self.waiting:
                self._hand_over()
        finally:
            self._let_go(thread)

    def _go_inside(self, thread: int) -> None:
        """Let *thread* inside, as the owner or with the lock."""
        if self.owner == thread:
            self.alone = thread
            if self.owner == thread:
                return
            self.alone = 0
        if self._has_lock:
            self._enter_again(thread)
        try:
            self._lock.acquire()
            if not (self._is_shared or self.owner):
                self.owner = self.alone = thread
                self._lock.release()
                return
            self._is_shared, self.owner = True, 0
            if self.alone:
                self._wait_for_owner()
        except BaseException:
            # An exception of a signal handler may come when the lock has been taken, or released, and the next line not begun.
            if self._has_lock:
                self._lock.release()
            raise
        self.inside = thread

    def _wait_for_owner(self) -> None:
        """Wait until the thread that was the owner is outside, or for ten seconds: it was interrupted in :meth:`exit`."""
        end = time.monotonic() + _OWNER_MOST_SECONDS
        while self.alone and time.monotonic() < end:
            time.sleep(_OWNER_SECONDS)
        self.alone = 0

    def _enter_again(self, thread: int) -> None:
        """Make up for an interrupted exit of *thread*. Raises RuntimeError in a handler that has interrupted the use of the state."""
        if _has_interrupted_call(self):
            if self._is_inside(thread):
                raise RuntimeError(
                    "this signal handler has interrupted a call of the same bus, and cannot use it; let the handler set a flag"
                )
            return  # the reader waits outside
        if self.reader == thread:
            self.reader = 0
        self._let_go(thread)
        if self._has_lock:
            self._lock.release()

    def _is_inside(self, thread: int) -> bool:
        """Return whether *thread*, the caller, is inside, or has the lock and is about to be."""
        return thread in (self.alone, self.inside) or self._has_lock

    @property
    def _has_lock(self) -> bool:
        """Whether the caller has the lock."""
        return self._lock._is_owned()  # type: ignore[attr-defined,no-any-return]  # as threading.Condition does

    def _let_go(self, thread: int) -> None:
        """Let *thread* outside, if it is inside."""
        if self.inside == thread:
            self.inside = 0
            self._lock.release()
        elif self.alone == thread:
            self.alone = 0

    @property
    def has_reader(self) -> bool:
        """Whether another thread reads. A signal handler in the thread that reads may read too: that thread waits for its end."""
        return self.reader not in (0, get_ident())

    @property
    def is_socket_used(self) -> bool:
        """Whether a thread outside uses the socket; then it must not be closed."""
        return self.reader != 0 or self._writers > 0

    def unlocked(self, wait: Callable[[], T]) -> T:
        """Return the result of *wait*, called outside, as the reader; there must be no other reader.

        A signal handler may run after *wait*, and before this thread is inside again: *wait* must not receive a packet, because the handler
        would receive the next one before this one is accepted.
        """
        before = self.reader
        try:
            self.reader = get_ident()  # while it is inside: a signal handler runs after the release at the earliest
            return self._outside(wait)
        finally:
            self.reader = before
            if self._closing:
                self._close_all()

    def poll_room(self, sock: socket.socket) -> int:
        """Wait a short time outside until *sock* has room, and return the events of poll(2)."""
        poller = select.poll()
        poller.register(sock, select.POLLOUT)
        ready = self.outside(partial(poller.poll, _ROOM_SECONDS * 1000))
        return ready[0][1] if ready else 0

    def outside(self, wait: Callable[[], T]) -> T:
        """Return the result of *wait*, called outside, but not as the reader: there may be another one."""
        try:
            self._writers += 1
            if self.waiting:
                self._hand_over()
            return self._outside(wait)
        finally:
            self._writers -= 1
            if self._closing:
                self._close_all()

    def _outside(self, wait: Callable[[], T]) -> T:
        """Return the result of *wait*, called outside."""
        thread = get_ident()
        try:
            if self.inside == thread:
                self.inside = 0
                self._lock.release()
            else:
                self.alone = 0
            return wait()
        finally:
            try:
                self._go_inside(thread)
            except BaseException:  # of a signal handler; what the caller undoes now needs the state
                self._go_inside(thread)
                raise

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
        """Wait outside until *is_done*, or until this thread may become the reader; may return early. Raises TimedOut."""
        thread = get_ident()
        if self.alone == thread:  # the owner, which another thread is about to join
            self.alone = 0
            self._go_inside(thread)
            return
        waiter = _Waiter(is_done)
        try:
            self.waiting.append(waiter)
            is_woken = self._outside(partial(waiter.wait, deadline.remaining()))
        finally:
            with contextlib.suppress(ValueError):  # in a child process that a signal handler has forked
                self.waiting.remove(waiter)
        if not is_woken and not is_done():
            raise deadline.expired()

    def notify(self) -> None:
        """Wake the threads whose conditions hold."""
        for waiter in list(self.waiting):  # an exception of a signal handler may remove one at any time
            if waiter.is_done():
                waiter.wake()

    def _hand_over(self) -> None:
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
        """Forget the other threads: a child process does not have them."""
        self.reader = self._writers = 0
        self.waiting.clear()
        self._close_all()


def _has_interrupted_call(threads: Threads) -> bool:
    """Return whether the present call was made, by a signal handler, within another call that uses *threads*."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and _uses(frame, threads):
        frame = frame.f_back
    while frame is not None and not _uses(frame, threads):
        frame = frame.f_back
    return frame is not None


def _uses(frame: FrameType, threads: Threads) -> bool:
    """Return whether *frame* is a method of a link with *threads*, or of *threads*."""
    user = frame.f_locals.get("self")
    return frame.f_locals.get("threads") is threads or user is threads or getattr(user, "threads", None) is threads
