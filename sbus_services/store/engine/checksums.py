"""Checksums of messages: what the disk has changed is noticed when it is read, and never delivered.

SQLite has checksums in its log only. A message has two: of all but its payload, by which a read of few keys finds a damaged key without the
payload, and of all of it. Gaps have none. Jobs have none either: their rows change with their states, and a row whose time was changed to
a later one is not read before that time.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from sbus_services.store.engine.database import Database
from sbus_services.store.engine.figures import AllFigures
from sbus_services.store.engine.messages import NO_UID, Sender, Stored
from sbus_services.store.engine.schema import SENDER_UID, SEQ_BITS, message_of, seq_of

DAMAGED = "damaged on the disk"
"""The reason of the gap that a reader gets for a damaged message, and of the dead letter of such a job."""

MAX_FOUND = 10_000
"""Damaged messages that are found between two sweeps; others are found when they are read again."""

HEAD = f"message.id, time, key, {SENDER_UID}, gid, pid, origin, expires, gap, crc, account"

HEAD_WIDTH = 11
"""Number of HEAD: what a statement selects in addition follows."""

_HEAD_MASK = 0x7FFF_FFFF

_OTHER_TYPE = (TypeError, AttributeError, ValueError)
"""What is raised for a value that is of another type than the message had."""

_NOTE = "INSERT OR IGNORE INTO damaged (id, time) VALUES (?, ?)"
_COUNT = "SELECT COUNT(*), COUNT(NULLIF(time, 0)) FROM damaged"
_ACKNOWLEDGE = "UPDATE damaged SET time = 0 WHERE id IN (SELECT id FROM damaged WHERE time != 0 LIMIT ?)"


def checksum(head: tuple[Any, ...], payload: bytes) -> int:
    """Return the checksums of a message: *head* has its id, time, key, uid, gid, pid, origin, expires and account."""
    value = _head(head)
    return (value & _HEAD_MASK) << 32 | crc32(payload, value)


def _head(head: tuple[Any, ...]) -> int:
    """Return the checksum of all but the payload. Raises one of _OTHER_TYPE."""
    number, time, key, uid, gid, pid, origin, expires, account = head
    value = crc32(b"%d %d %d %d %d %d %b\0%b" % (number, time, uid, gid, pid, expires or 0, (origin or "").encode(), key))
    return value if account == uid else crc32(b" %d" % account, value)


class Checksums:
    """Compares what is read with the checksums, and notes what differs."""

    def __init__(self, database: Database, figures: AllFigures) -> None:
        self._run = database.execute
        self._figures = figures
        self._found: set[int] = set()

    def are_right(self, row: tuple[Any, ...]) -> bool:
        """Return whether a message or gap is as it was stored; *row* has COLUMNS."""
        number, time, key, payload, uid, gid, pid, origin, expires, gap, crc, account = row
        if gap is not None and crc is None:
            return True
        try:
            if gap is None and checksum((number, time, key, uid, gid, pid, origin, expires, account), payload) == crc:
                return True
        except _OTHER_TYPE:
            pass
        self._add(number)
        return False

    def message_of(self, row: tuple[Any, ...]) -> tuple[Stored, bool]:
        """Return the message in *row*, which has COLUMNS, and whether it is as it was stored: otherwise only its number is known."""
        if self.are_right(row):
            return message_of(row), True
        return Stored(seq_of(row[0]), 0, b"", b"", Sender(NO_UID, 0, 0)), False

    def is_head_right(self, row: tuple[Any, ...]) -> bool:
        """Do so for all but the payload; *row* has HEAD."""
        *head, gap, crc, account = row
        if gap is not None and crc is None:
            return True
        try:
            if gap is None and _head((*head, account)) & _HEAD_MASK == crc >> 32:
                return True
        except _OTHER_TYPE:
            pass
        self._add(row[0])
        return False

    def note(self, date: int) -> list[tuple[str, int]]:
        """Note in the file what was found since the last call, and return stream and number of what was not known."""
        new = [each for each in sorted(self._found) if self._run(_NOTE, (each, date)).rowcount > 0]
        self._found.clear()
        names = {each.id: each.name for each in self._figures.streams.values()}
        return [(names.get(each >> SEQ_BITS, ""), seq_of(each)) for each in new]

    def counts(self) -> tuple[int, int]:
        """Return the number of damaged messages that were found, and of those that are not acknowledged."""
        ((found, unacknowledged),) = self._run(_COUNT).fetchall()
        return int(found), int(unacknowledged)

    def acknowledge(self, max_rows: int) -> int:
        """Acknowledge at most *max_rows* damaged messages, and return how many."""
        return self._run(_ACKNOWLEDGE, (max_rows,)).rowcount

    def _add(self, number: int) -> None:
        """Note it at the next sweep: reading needs no space on the disk."""
        if len(self._found) < MAX_FOUND:
            self._found.add(number)
