"""Requests that wait while a thread looks up the groups of their callers, so that a slow directory service stalls no other request."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable

from sbusd.client.rpc.caller_access import groups_of
from sbusd.client.rpc.request_queue import WAITING_PER_USER
from sbusd.client.rpc.service import Task

MAX_LOOK_UPS = 8
"""Look-ups at the same time, each in a thread."""


class CallerGroups:
    """The requests of users whose groups are looked up, in the order of their arrival. *on_known* gets each with the groups,
    None if they cannot be looked up."""

    def __init__(self, on_known: Callable[[Task, frozenset[int] | None], None]) -> None:
        self.running: set[asyncio.Task[None]] = set()
        """The look-ups that have not ended."""
        self._on_known = on_known
        self._waiting: dict[int, list[Task]] = {}
        self._parties: Counter[tuple[int, int]] = Counter()
        self._threads = asyncio.Semaphore(MAX_LOOK_UPS)

    def __contains__(self, uid: int) -> bool:
        """Return whether the groups of the user *uid* are looked up now."""
        return uid in self._waiting

    def put(self, task: Task) -> bool:
        """Let *task* wait for the groups of its caller; return False if too many of the same party wait."""
        if self._parties[task.party] >= WAITING_PER_USER:
            return False
        self._parties[task.party] += 1
        uid = task.request.caller.uid
        if uid in self._waiting:
            self._waiting[uid].append(task)
            return True
        self._waiting[uid] = [task]
        running = asyncio.ensure_future(self._look_up(uid))
        self.running.add(running)
        running.add_done_callback(self.running.discard)
        return True

    def take_all(self) -> list[Task]:
        """Return the requests that still wait, and end the look-ups."""
        for each in self.running:
            each.cancel()
        waiting, self._waiting = self._waiting, {}
        self._parties.clear()
        return [task for tasks in waiting.values() for task in tasks]

    async def _look_up(self, uid: int) -> None:
        async with self._threads:
            groups = await _in_thread(uid)
        for task in self._waiting.pop(uid, ()):
            self._parties[task.party] -= 1
            self._on_known(task, groups)
        self._parties += Counter()


def _in_thread(uid: int) -> asyncio.Future[frozenset[int] | None]:
    """Return the groups of a user, later; None if the thread cannot start, or fails. A program that ends does not wait for the thread."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[frozenset[int] | None] = loop.create_future()

    def report(groups: frozenset[int] | None) -> None:
        if not found.done():
            found.set_result(groups)

    def look_up() -> None:
        groups: frozenset[int] | None = None
        try:
            groups = groups_of(uid)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(report, groups)

    try:
        threading.Thread(target=look_up, name="groups", daemon=True).start()
    except (RuntimeError, MemoryError):
        report(None)
    return found
