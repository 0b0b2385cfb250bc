"""Messages of calls that are stored and perhaps not yet published: a kill between the commit and the publication does not hide them.

Each put notes the numbers of its messages in its own transaction. They are removed by a later one, when the bus has taken the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sbus_services.store.engine.checksums import Checksums
from sbus_services.store.engine.database import Database
from sbus_services.store.engine.figures import AllFigures, StreamFigures
from sbus_services.store.engine.messages import EngineError, NewMessage, PutResult, Rest, Stored
from sbus_services.store.engine.schema import COLUMNS, message_id, size_of

MAX_BYTES = 1 << 20
"""Size of the messages that are returned at once, if there is more than one."""

_ADD = "INSERT OR REPLACE INTO unpublished (stream, seq, last) VALUES (?, ?, ?)"
_DELETE = "DELETE FROM unpublished WHERE stream = ? AND seq = ?"
_LAST = "SELECT seq, last FROM unpublished WHERE stream = ? ORDER BY seq DESC LIMIT 1"
_UNTIL = "SELECT seq, last FROM unpublished WHERE stream = ? AND seq <= ? ORDER BY seq"
_AFTER = "SELECT seq, last FROM unpublished WHERE stream = ? AND last > ? ORDER BY seq LIMIT 1"
_READ = f"SELECT {COLUMNS} FROM message WHERE id BETWEEN ? AND ? AND gap IS NULL ORDER BY id LIMIT ?"
_COUNT = "SELECT total(last - seq + 1) FROM unpublished WHERE stream = ?"
_NEVER = "SELECT value FROM number WHERE name = 'unpublished'"
_ADD_NEVER = "UPDATE number SET value = value + ? WHERE name = 'unpublished'"


class Unpublished:
    """The table of ranges of such messages."""

    def __init__(self, database: Database, figures: AllFigures, checksums: Checksums) -> None:
        self._run = database.execute
        self._figures = figures
        self._checksums = checksums

    def add(self, stream: StreamFigures, messages: Sequence[NewMessage], outcomes: Sequence[PutResult | EngineError]) -> None:
        """Note the messages that were stored now; those with a delay are not published."""
        first = last = 0
        for found, end in self._run(_LAST, (stream.id,)).fetchall():
            first, last = found, end
        is_new = False
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, EngineError) or outcome.is_duplicate or message.due_ms or message.at_ms:
                continue
            if is_new and outcome.seq != last + 1:
                self._run(_ADD, (stream.id, first, last))
            first, last = first if first and outcome.seq == last + 1 else outcome.seq, outcome.seq
            is_new = True
        if is_new:
            self._run(_ADD, (stream.id, first, last))

    def done(self, stream: StreamFigures, seq: int) -> None:
        """Note that messages up to *seq* were published."""
        for first, last in self._run(_UNTIL, (stream.id, seq)).fetchall():
            self._run(_DELETE, (stream.id, first))
            if last > seq:
                self._run(_ADD, (stream.id, seq + 1, last))

    def next(self, after: Mapping[str, int], max_messages: int) -> Rest | None:
        """Return messages of one stream with numbers above those of *after*; None if there are none."""
        for stream in self._figures.streams.values():
            sent = after.get(stream.name, 0)
            for seq, last in self._run(_AFTER, (stream.id, sent)).fetchall():
                first = max(seq, sent + 1)
                messages, until = self._read(stream, first, last, max_messages)
                return Rest(stream.name, until, messages, until - first + 1 - len(messages))
        return None

    def count(self) -> int:
        """Return the number of messages that are noted."""
        return sum(int(self._run(_COUNT, (each.id,)).fetchone()[0]) for each in self._figures.streams.values())

    @property
    def never(self) -> int:
        """The number of messages that could never be published, of all runs of the store."""
        ((found,),) = self._run(_NEVER).fetchall()
        return int(found)

    def add_never(self, count: int) -> None:
        """Count *count* more of these."""
        self._run(_ADD_NEVER, (count,))

    def _read(self, stream: StreamFigures, first: int, last: int, max_messages: int) -> tuple[list[Stored], int]:
        """Return messages from *first* to *last*, and the number up to which they were looked at."""
        found: list[Stored] = []
        room, looked, until = MAX_BYTES, 0, 0
        cursor = self._run(_READ, (message_id(stream.id, first), message_id(stream.id, last), max_messages))
        try:
            for row in cursor:
                looked += 1
                stored, is_right = self._checksums.message_of(row)
                room -= size_of(stored.key, stored.payload)
                if room < 0 and until:
                    return found, until
                found += [stored] if is_right else []
                until = stored.seq
        finally:
            cursor.close()
        return found, until if looked >= max_messages else last
