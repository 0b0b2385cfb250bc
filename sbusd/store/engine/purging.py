"""Removing messages on request."""

from __future__ import annotations

from sbusd.protocol.keys import KeySpace, intersection
from sbusd.store.engine.database import Database
from sbusd.store.engine.figures import AllFigures, StreamFigures
from sbusd.store.engine.messages import Purged
from sbusd.store.engine.put_ids import PutIds
from sbusd.store.engine.readers import Readers
from sbusd.store.engine.removal import Removal
from sbusd.store.engine.rows import REMOVABLE, SENDER_UID, Removable
from sbusd.store.engine.schema import message_id, seq_of

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
