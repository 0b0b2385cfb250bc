"""Removing messages, with their jobs and figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sbusd.store.engine.announcements import Announcements
from sbusd.store.engine.checksums import HEAD, Checksums
from sbusd.store.engine.database import Database
from sbusd.store.engine.figures import AllFigures, StreamFigures
from sbusd.store.engine.job_lines import JobLines
from sbusd.store.engine.rows import Removable
from sbusd.store.engine.schema import LEASED

_DELETE = "DELETE FROM message WHERE id = ?"
_DELETE_JOB = "DELETE FROM job WHERE id = ?"
_HEAD = f"SELECT {HEAD} FROM message WHERE id = ?"
_JOB = "SELECT queue, state, uid, line FROM job WHERE id = ?"
_NEWEST_OF_KEY = "SELECT id, account FROM message WHERE stream = ? AND key = ? AND gap IS NULL ORDER BY id DESC LIMIT 1"


class Removal:
    """Removes rows of the table of messages."""

    def __init__(
        self, database: Database, figures: AllFigures, lines: JobLines, announcements: Announcements, checksums: Checksums
    ) -> None:
        self._run = database.execute
        self._run_many = database.executemany
        self._figures = figures
        self._lines = lines
        self._announcements = announcements
        self._checksums = checksums

    def remove(self, stream: StreamFigures, rows: Sequence[Removable], *, keys_are_counted: bool = False) -> int:
        """Remove *rows* of *stream*, and return how many of them are messages. *keys_are_counted*: the caller counts the keys."""
        if not rows:
            return 0
        self._figures.change(stream)
        if self._figures.queues_of(stream):
            self._remove_jobs([row.id for row in rows if row.gap is None])
        counted = [] if keys_are_counted or not stream.is_keyed else self._newest(rows)
        self._run_many(_DELETE, [(row.id,) for row in rows])
        count = 0
        for row in rows:
            stream.bytes -= row.size
            if row.gap is not None:
                stream.gaps -= 1
                continue
            count += 1
            usage = self._figures.usage_of(stream, row.account)
            usage.messages -= 1
            usage.bytes -= row.size
        stream.messages -= count
        self._count_keys(stream, counted)
        return count

    def _remove_jobs(self, ids: Sequence[int]) -> None:
        """Remove the jobs of the messages with the numbers *ids*."""
        for number in ids:
            for queue_id, state, uid, line in self._run(_JOB, (number,)).fetchall():
                queue = self._figures.queues[queue_id]
                self._figures.change(queue)
                queue.move(state, None)
                if state == LEASED:
                    self._figures.add_leases(uid, -1)
                self._run(_DELETE_JOB, (number,))
                if line is not None:
                    self._lines.advance(queue, line)

    def _newest(self, rows: Sequence[Removable]) -> list[tuple[Removable, tuple[Any, ...]]]:
        """Return the newest of *rows* of each key, with its HEAD."""
        newest: dict[bytes, Removable] = {}
        for row in rows:
            if row.gap is None and (row.key not in newest or newest[row.key].id < row.id):
                newest[row.key] = row
        return [(row, self._run(_HEAD, (row.id,)).fetchall()[0]) for row in newest.values()]

    def _count_keys(self, stream: StreamFigures, counted: Sequence[tuple[Removable, tuple[Any, ...]]]) -> None:
        """Count the keys of removed rows: a key counts for the user of its newest message. Note keys that have no message any more."""
        for removed, head in counted:
            left = self._run(_NEWEST_OF_KEY, (stream.id, removed.key)).fetchall()
            if left and left[0][0] > removed.id:
                continue
            self._figures.usage_of(stream, removed.account).keys -= 1
            if left:
                self._figures.usage_of(stream, left[0][1]).keys += 1
            else:
                stream.keys -= 1
                # If the disk has changed the key, the one that has ended is unknown.
                if self._checksums.is_head_right(head):
                    self._announcements.add_end(stream, removed.key, head[3:7])
