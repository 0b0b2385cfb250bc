"""Requests that wait while a thread looks up the groups of their callers, so that a slow directory service stalls no other request."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial

from sbus.asyncio.look_ups import LookUps
from sbus.rpc.caller_access import groups_of
from sbus.rpc.request_queue import WAITING_PER_USER
from sbus.rpc.requests import Task


class CallerGroups:
    """The requests of users whose groups are looked up, in the order of their arrival. *on_known* gets each with the groups,
    None if they cannot be looked up, or not in time. Users do not wait for each other's look-ups."""

    def __init__(self, on_known: Callable[[Task, frozenset[int] | None], None]) -> None:
        self.running: set[asyncio.Task[None]] = set()
        """The look-ups that have not ended."""
        self._on_known = on_known
        self._waiting: dict[int, list[Task]] = {}
        self._parties: Counter[tuple[int, int]] = Counter()
        self._look_ups = LookUps()

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
        user, _ = task.party
        running = asyncio.ensure_future(self._look_up(user, uid))
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

    async def _look_up(self, user: int, uid: int) -> None:
        """Look up the groups of *uid*, for which *user* is charged."""
        groups: frozenset[int] | None = None
        with contextlib.suppress(Exception):  # too late, no thread, or a defect of the user database: the requests are rejected
            groups = await self._look_ups.run(user, partial(groups_of, uid))
        for task in self._waiting.pop(uid, ()):
            self._parties[task.party] -= 1
            self._on_known(task, groups)
        self._parties += Counter()
