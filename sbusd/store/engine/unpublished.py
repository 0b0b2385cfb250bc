"""Messages of calls that are stored and perhaps not yet published: a kill between the commit and the publication does not hide them.

Each put notes the numbers of its messages in its own transaction. They are removed by a later one, when the messages were sent to the bus.
"""

from __future__ import annotations

from collections.abc import Sequence

from sbusd.store.engine.database import Database
from sbusd.store.engine.figures import AllFigures, StreamFigures
from sbusd.store.engine.messages import NewMessage, Put, Stored, StoreError
from sbusd.store.engine.rows import COLUMNS, message_of
from sbusd.store.engine.schema import message_id

_ADD = "INSERT OR REPLACE INTO unpublished (stream, seq, last) VALUES (?, ?, ?)"
_DELETE = "DELETE FROM unpublished WHERE stream = ? AND seq = ?"
_UNTIL = "SELECT seq, last FROM unpublished WHERE stream = ? AND seq <= ? ORDER BY seq"
_FIRST = "SELECT seq, last FROM unpublished WHERE stream = ? ORDER BY seq LIMIT 1"
_READ = f"SELECT {COLUMNS} FROM message WHERE id BETWEEN ? AND ? AND gap IS NULL ORDER BY id LIMIT ?"


class Unpublished:
    """The table of ranges of such messages."""

    def __init__(self, database: Database, figures: AllFigures) -> None:
        self._run = database.execute
        self._figures = figures

    def add(self, stream: StreamFigures, messages: Sequence[NewMessage], outcomes: Sequence[Put | StoreError]) -> None:
        """Note the messages that were stored now; those with a delay are not published."""
        first = last = 0
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, StoreError) or outcome.is_duplicate or message.due_ms or message.at_ms:
                continue
            if first and outcome.seq != last + 1:
                self._run(_ADD, (stream.id, first, last))
                first = 0
            first, last = first or outcome.seq, outcome.seq
        if first:
            self._run(_ADD, (stream.id, first, last))

    def done(self, stream: StreamFigures, seq: int) -> None:
        """Note that messages up to *seq* were published."""
        for first, last in self._run(_UNTIL, (stream.id, seq)).fetchall():
            self._run(_DELETE, (stream.id, first))
            if last > seq:
                self._run(_ADD, (stream.id, seq + 1, last))

    def next(self, max_messages: int) -> tuple[str, int, list[Stored]] | None:
        """Return a stream, the number up to which it was looked at, and its messages until there; None if all were published."""
        for stream in self._figures.streams.values():
            for seq, last in self._run(_FIRST, (stream.id,)).fetchall():
                rows = self._run(_READ, (message_id(stream.id, seq), message_id(stream.id, last), max_messages)).fetchall()
                found = [message_of(row) for row in rows]
                return stream.name, found[-1].seq if len(found) >= max_messages else last, found
        return None
