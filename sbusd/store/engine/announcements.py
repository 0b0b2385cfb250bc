"""What time and removal do that is also published: last values that end, and jobs that become dead letters.

Both are noted in the transaction in which they occur, in tables with growing *places*. A note is removed when the bus has taken the
message, so a kill between the commit and the publication, or a bus that is away, delays the message and does not lose it.
"""

from __future__ import annotations

from typing import Any

from sbusd.store.engine.checksums import DAMAGED, Checksums
from sbusd.store.engine.database import Database
from sbusd.store.engine.figures import AllFigures, StreamFigures
from sbusd.store.engine.messages import NO_UID, DeadLetter, EndedValue, NewMessage, Places, Sender
from sbusd.store.engine.schema import COLUMNS, DEAD, WIDTH, size_of

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
