"""Threads for closes that can block for as long as a user likes: each user has at most one, so a user delays only its own closes.

A signal interrupts a close that waits in SO_LINGER, socket(7). One that waits for a FUSE server cannot be interrupted: it continues until
that server answers or ends.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

UNSIGNALLED_SECONDS = 0.002
"""How long a close may block before a signal interrupts it."""

_POLL_SECONDS = 0.001

_SIGNAL_SHARE = 0.001
"""Signals become rarer with the time that a close takes: their interval is at least this part of it."""


@dataclass(slots=True)
class _Turn:
    """The thread that closes an item of a user, since when, and when it gets the next signal."""

    thread: int
    began: float
    signal_at: float


class OwnerThreads:
    """Items of users that wait to be closed, as numbers. Only the threads may block; every method returns at once.

    *close* closes an item; after that, *closed* is called with its user and the item. Threads call both. At most *max_threads* close at the
    same time, and users take turns for a free thread. A thread ends when no items are left for it.
    """

    def __init__(self, close: Callable[[int], None], closed: Callable[[int, int], None], max_threads: int) -> None:
        self._close = close
        self._closed = closed
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._waiting: dict[int, deque[int]] = {}
        self._ready: deque[int] = deque()
        """The users with items in ``_waiting`` and none in ``_busy``."""
        self._busy: dict[int, _Turn] = {}
        self._total = 0
        self._threads = 0
        self._has_work = threading.Event()
        self._has_rouser = False
        self._is_held = False

    def add(self, user: int, *items: int) -> None:
        """Take over *items* of *user*, and close them."""
        if not items:
            return
        with self._lock:
            if user not in self._waiting and user not in self._busy:
                self._ready.append(user)
            self._waiting.setdefault(user, deque()).extend(items)
            self._total += len(items)
            # Without memory for a thread, the items wait until the next one is added.
            with contextlib.suppress(RuntimeError):
                self._start()

    def pending(self, user: int) -> int:
        """Return the number of items of *user* that are not closed yet."""
        with self._lock:
            return len(self._waiting.get(user, ())) + (user in self._busy)

    def largest(self) -> int:
        """Return the user with the most items that are not closed yet. Raises ValueError without items."""
        with self._lock:
            users = self._waiting.keys() | self._busy.keys()
            return max(users, key=lambda user: len(self._waiting.get(user, ())) + (user in self._busy))

    def busy_seconds(self, user: int) -> float:
        """Return how long the present close of *user* has taken; 0 without one."""
        with self._lock:
            turn = self._busy.get(user)
            return 0.0 if turn is None else time.monotonic() - turn.began

    def hold(self, until: float) -> bool:
        """Begin no further close, and wait *until* a time of the monotonic clock for those that have begun; return whether all have ended.

        A process cannot replace its program, execve(2), before all its threads end.
        """
        with self._lock:
            self._is_held = True
        while self._busy and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        return not self._busy

    def let_go(self) -> None:
        """Begin closes again after :meth:`hold`."""
        with self._lock:
            self._is_held = False
            with contextlib.suppress(RuntimeError):
                for _ in range(len(self._ready)):
                    self._start()

    @property
    def total(self) -> int:
        """The number of items of all users that are not closed yet."""
        return self._total

    def _start(self) -> None:
        """Start a thread if there is a user without one, unless there are too many. The lock is held. Raises RuntimeError.

        Without threading.Thread, whose start() waits until the new thread runs: the caller would wait for the scheduler.
        """
        if not self._has_rouser:
            with contextlib.suppress(ValueError):
                # Only a signal with a handler interrupts a close, and only the main thread can set the handler.
                signal.signal(signal.SIGURG, lambda _number, _frame: None)
            _thread.start_new_thread(self._rouse, ())
            self._has_rouser = True
        if self._threads < min(self._max_threads, len(self._busy) + len(self._ready)):
            _thread.start_new_thread(self._run, ())
            self._threads += 1

    def _run(self) -> None:
        """Close items until none waits for a thread."""
        while (turn := self._take()) is not None:
            user, item = turn
            self._close(item)
            with self._lock:
                del self._busy[user]
                self._total -= 1
                if user in self._waiting:
                    self._ready.append(user)
            self._closed(user, item)

    def _take(self) -> tuple[int, int] | None:
        """Return the user whose turn it is, and one of its items, which the calling thread closes. None: the thread ends."""
        with self._lock:
            if not self._ready or self._is_held:
                self._threads -= 1
                return None
            user = self._ready.popleft()
            items = self._waiting[user]
            item = items.popleft()
            if not items:
                del self._waiting[user]
            began = time.monotonic()
            self._busy[user] = _Turn(threading.get_ident(), began, began + UNSIGNALLED_SECONDS)
        self._has_work.set()
        return user, item

    def _rouse(self) -> None:
        """Send signals to the threads while there are items to close."""
        while True:
            self._has_work.wait()
            while True:
                # Most closes take less, and need no signal.
                time.sleep(UNSIGNALLED_SECONDS)
                self._has_work.clear()
                with self._lock:
                    signal_at = self._interrupt()
                if signal_at is None:
                    break
                # A close that begins ends the pause.
                self._has_work.wait(max(0.0, signal_at - time.monotonic()))

    def _interrupt(self) -> float | None:
        """Send a signal to each thread whose close blocks, and return when the next one is due. The lock is held, so each is alive."""
        now = time.monotonic()
        for turn in self._busy.values():
            if turn.signal_at <= now:
                signal.pthread_kill(turn.thread, signal.SIGURG)
                turn.signal_at = now + max(UNSIGNALLED_SECONDS, (now - turn.began) * _SIGNAL_SHARE)
        return min((turn.signal_at for turn in self._busy.values()), default=None)
