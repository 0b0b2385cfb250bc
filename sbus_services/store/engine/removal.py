"""Removing messages, with their jobs and figures, also on request; and what removal and time publish.

Last values that end, and jobs that become dead letters, are published. Both are noted in the transaction in which they occur, in tables
with growing *places*. A note is removed when the bus has taken the
message, so a kill between the commit and the publication, or a bus that is away, delays the message and does not lose it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sbus.protocol.keys import KeySpace, intersection
from sbus_services.store.engine.checksums import DAMAGED, HEAD, Checksums
from sbus_services.store.engine.database import Database
from sbus_services.store.engine.figures import AllFigures, StreamFigures
from sbus_services.store.engine.messages import NO_UID, DeadLetter, EndedValue, NewMessage, Places, Purged, Sender
from sbus_services.store.engine.put_ids import PutIds
from sbus_services.store.engine.reading import Readers
from sbus_services.store.engine.schema import (
    COLUMNS,
    DEAD,
    LEASED,
    REMOVABLE,
    SENDER_UID,
    WIDTH,
    Removable,
    message_id,
    seq_of,
    size_of,
)
from sbus_services.store.engine.stream import JobLines

MAX_DEAD_BYTES = 1 << 20
"""Size of the dead letters that are returned at once, if there is more than one."""

_ADD_END = "INSERT INTO ended (stream, key, account, gid, pid, origin) VALUES (?, ?, ?, ?, ?, ?)"
_ADD_LETTER = "INSERT OR REPLACE INTO dead_letter (job) VALUES (?)"
_ENDS = "SELECT place, stream, key, account, gid, pid, origin FROM ended WHERE place > ? ORDER BY place LIMIT ?"
_HAS_VALUE = "SELECT 1 FROM message WHERE stream = ? AND key = ? AND gap IS NULL LIMIT 1"
_LETTERS = (
    f"SELECT {COLUMNS}, place, queue, state, tries, reason, at FROM dead_letter"
    " LEFT JOIN job ON job.id = dead_letter.job LEFT JOIN message ON message.id = dead_letter.job"
    " WHERE place > ? ORDER BY place LIMIT ?"
)
_DONE_ENDS = "DELETE FROM ended WHERE place <= ?"
_DONE_LETTERS = "DELETE FROM dead_letter WHERE place <= ?"


class Announcements:
    """The notes of both kinds."""

    def __init__(self, database: Database, figures: AllFigures, checksums: Checksums) -> None:
        self._run = database.execute
        self._figures = figures
        self._checksums = checksums

    def add_end(self, stream: StreamFigures, key: bytes, sender: tuple[Any, ...]) -> None:
        """Note that *key* has no value any more; *sender* is uid, gid, pid and origin of the last one."""
        self._run(_ADD_END, (stream.id, key, *sender))

    def add_letter(self, job: int) -> None:
        """Note that the job of the message with the number *job* is dead."""
        self._run(_ADD_LETTER, (job,))

    def after(self, places: Places, max_rows: int) -> tuple[list[EndedValue], list[DeadLetter], Places]:
        """Return what is noted after *places*, at most *max_rows* of each kind, and the places up to which the notes were looked at.

        A key that has a value again, and a dead letter that was revived or removed, are passed over.
        """
        values, end = self._ends(places.ends, max_rows)
        letters, letter = self._letters(places.letters, max_rows)
        return values, letters, Places(end, letter)

    def done(self, places: Places) -> None:
        """Remove the notes up to *places*."""
        self._run(_DONE_ENDS, (places.ends,))
        self._run(_DONE_LETTERS, (places.letters,))

    def _ends(self, place: int, max_rows: int) -> tuple[list[EndedValue], int]:
        names = {each.id: each.name for each in self._figures.streams.values()}
        found = []
        for number, stream, key, uid, gid, pid, origin in self._run(_ENDS, (place, max_rows)).fetchall():
            place = number
            if stream in names and not self._run(_HAS_VALUE, (stream, key)).fetchall():
                sender = Sender(max(uid, NO_UID), gid, pid, origin or "")
                found.append(EndedValue(number, names[stream], NewMessage(key, b"", sender)))
        return found, place

    def _letters(self, place: int, max_rows: int) -> tuple[list[DeadLetter], int]:
        found: list[DeadLetter] = []
        room = MAX_DEAD_BYTES
        cursor = self._run(_LETTERS, (place, max_rows))
        try:
            for row in cursor:
                number, queue, state, tries, reason, at = row[WIDTH:]
                if state == DEAD and row[0] is not None:
                    stored, is_right = self._checksums.message_of(row[:WIDTH])
                    room -= size_of(stored.key, stored.payload)
                    if room < 0 and found:
                        break
                    name, why = self._figures.queues[queue].name, reason or "" if is_right else DAMAGED
                    found.append(DeadLetter(name, stored.seq, stored.key, stored.payload, stored.sender, tries, why, at, number))
                place = number
        finally:
            cursor.close()
        return found, place


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


_ROWS = f"SELECT {REMOVABLE} FROM message WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
_OF_KEY = f"SELECT {REMOVABLE}, {SENDER_UID} FROM message WHERE stream = ? AND key = ? AND gap IS NULL AND id >= ? ORDER BY id LIMIT ?"
_NEWEST = f"SELECT {SENDER_UID} FROM message WHERE stream = ? AND key = ? AND gap IS NULL ORDER BY id DESC LIMIT 1"

_KEYS = KeySpace()


class Purging:
    """Removes the messages of a key or a pattern."""

    def __init__(self, database: Database, figures: AllFigures, removal: Removal, readers: Readers, ids: PutIds) -> None:
        self._run = database.execute
        self._figures = figures
        self._removal = removal
        self._readers = readers
        self._ids = ids

    def forget(self, stream: StreamFigures, key: bytes, uid: int | None, from_seq: int, max_rows: int) -> Purged:
        """Remove messages of *key*; see Engine.forget."""
        found = self._run(_OF_KEY, (stream.id, key, message_id(stream.id, from_seq), max_rows)).fetchall()
        rows, senders = [Removable(*row[:-1]) for row in found], [row[-1] for row in found]
        is_whole = uid is None or (stream.is_keyed and self._newest_sender(stream, key) == uid)
        count = self._removal.remove(stream, [row for row, sender in zip(rows, senders, strict=True) if is_whole or sender == uid])
        return _purged(rows, count, max_rows)

    def _newest_sender(self, stream: StreamFigures, key: bytes) -> int | None:
        """Return the uid of the sender of the last value of *key*. With it end older values of others: none becomes the last again."""
        return next((uid for (uid,) in self._run(_NEWEST, (stream.id, key)).fetchall()), None)

    def purge(self, stream: StreamFigures, before_seq: int | None, pattern: bytes, from_seq: int, max_rows: int, *, drop: bool) -> Purged:
        """Remove messages that *pattern* matches; see Engine.purge. *drop*: forget the stream when it is empty."""
        last = stream.last_seq if before_seq is None else min(before_seq - 1, stream.last_seq)
        numbers = (message_id(stream.id, from_seq), message_id(stream.id, last) if last >= 0 else 0)
        rows = [Removable(*row) for row in self._run(_ROWS, (*numbers, max_rows)).fetchall()]
        count = self._removal.remove(stream, [row for row in rows if not pattern or _matches(pattern, row)])
        found = _purged(rows, count, max_rows)
        if drop and not stream.messages and not stream.gaps:
            if self._ids.forget_stream(stream, max_rows) >= max_rows:
                return Purged(found.count, more=True, next_seq=found.next_seq)
            self._readers.forget_stream(stream)
            self._figures.drop(stream)
        return found


def _purged(rows: list[Removable], count: int, max_rows: int) -> Purged:
    """Return the result for *rows* that were looked at."""
    return Purged(count, len(rows) >= max_rows, seq_of(rows[-1].id) + 1 if rows else 0)


def _matches(pattern: bytes, row: Removable) -> bool:
    """Return whether *pattern* matches the key of a message, or any key of the pattern of a gap."""
    return _KEYS.matches(pattern, row.key) if row.gap is None else intersection(pattern, row.key) is not None
