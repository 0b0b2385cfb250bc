"""Queues in order: of each key only one job is under way, and the next one is the earliest of those that wait.

A job that was put with a delay takes its place in the line when the delay ends, so it does not block others before.
"""

from __future__ import annotations

import hashlib

from sbusd.store.engine.database import Database
from sbusd.store.engine.figures import QueueFigures
from sbusd.store.engine.schema import BLOCKED, LEASED, READY, RETRYING

_UNDER_WAY = f"SELECT 1 FROM job WHERE queue = ? AND line = ? AND state IN ({READY}, {LEASED}, {RETRYING}) LIMIT 1"
_NEXT = f"SELECT id FROM job WHERE queue = ? AND line = ? AND state = {BLOCKED} ORDER BY id LIMIT 1"
_UNBLOCK = f"UPDATE job SET state = {READY}, at = NULL WHERE id = ?"


def line_of(key: bytes) -> int:
    """Return the number of the line of *key*. Two keys can have the same one; then their jobs share a line."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big", signed=True)


class JobLines:
    """The lines of all ordered queues."""

    def __init__(self, database: Database) -> None:
        self._run = database.execute

    def is_busy(self, queue: QueueFigures, line: int) -> bool:
        """Return whether a job of *line* is under way: ready, with a worker, or between two tries."""
        return bool(self._run(_UNDER_WAY, (queue.id, line)).fetchall())

    def advance(self, queue: QueueFigures, line: int) -> None:
        """Make the next job of *line* ready, if none is under way. The caller has noted that *queue* changes."""
        if not self.is_busy(queue, line):
            for (number,) in self._run(_NEXT, (queue.id, line)).fetchall():
                self._run(_UNBLOCK, (number,))
                queue.move(BLOCKED, READY)
