"""Reading streams and last values: each call looks at a bounded number of rows, and says where to go on. Readers can be durable."""

from __future__ import annotations

from typing import Any

from sbus.protocol.keys import KeySpace, intersection
from sbus.protocol.printable import printable
from sbus_services.store.engine.checksums import DAMAGED, HEAD, Checksums
from sbus_services.store.engine.database import Database
from sbus_services.store.engine.figures import AllFigures, StreamFigures
from sbus_services.store.engine.messages import EngineError, Gap, LastValues, Page, Stored
from sbus_services.store.engine.schema import COLUMNS, MAX_SEQ, item_of, message_id, message_of, seq_of, size_of
from sbus_services.store.engine.stream import id_range

MAX_NAME_BYTES = 64
"""Maximum size of the name of a reader."""

_GET = "SELECT seq FROM reader WHERE stream = ? AND uid = ? AND name = ?"
_SET = "INSERT OR REPLACE INTO reader (stream, uid, name, seq) VALUES (?, ?, ?, ?)"
_DROP = "DELETE FROM reader WHERE stream = ? AND uid = ? AND name = ?"
_OF_USER = "SELECT name, seq FROM reader WHERE stream = ? AND uid = ? ORDER BY name LIMIT ?"
_OF_STREAM = "SELECT uid, name, seq FROM reader WHERE stream = ? ORDER BY uid, name LIMIT ?"
_FORGET = "DELETE FROM reader WHERE stream = ?"


class Readers:
    """The table of readers."""

    def __init__(self, database: Database, figures: AllFigures) -> None:
        self._run = database.execute
        self._figures = figures

    def get(self, stream: StreamFigures, uid: int, name: str) -> int | None:
        """Return the number of the message that the reader reads next, or None if the reader does not exist."""
        return next((int(seq) for (seq,) in self._run(_GET, (stream.id, uid, name)).fetchall()), None)

    def set(self, stream: StreamFigures, uid: int, name: str, seq: int, max_readers: int) -> None:
        """Set the position of a reader. Raises EngineError if it is new and *uid* has *max_readers* others."""
        if not name or not name.isprintable() or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
            raise EngineError("EINVAL", f"invalid name of a reader '{printable(name, 80)}': must be 1 to {MAX_NAME_BYTES} printable bytes")
        if not 0 <= seq <= MAX_SEQ:
            raise EngineError("EINVAL", f"invalid position {seq} of a reader: must be 0 to {MAX_SEQ}")
        if self.get(stream, uid, name) is None:
            user = self._figures.charged.of(uid)
            if self._count_of_user(user) >= max_readers:
                raise EngineError("EDQUOT", f"user {user} has {max_readers} readers, the maximum; drop one that is not used")
            self._figures.add_readers(stream, uid, 1)
        self._run(_SET, (stream.id, uid, name, seq))

    def drop(self, stream: StreamFigures, uid: int, name: str) -> bool:
        """Remove a reader, and return whether there was one."""
        found = self._run(_DROP, (stream.id, uid, name)).rowcount > 0
        if found:
            self._figures.add_readers(stream, uid, -1)
        return found

    def list(self, stream: StreamFigures, uid: int | None, most: int) -> list[tuple[int, str, int]]:
        """Return uid, name and position of the readers of *uid*, or of all users; at most *most*."""
        if uid is None:
            return self._run(_OF_STREAM, (stream.id, most)).fetchall()
        return [(uid, name, seq) for name, seq in self._run(_OF_USER, (stream.id, uid, most)).fetchall()]

    def _count_of_user(self, user: int) -> int:
        """Return the number of readers for which *user* is charged."""
        charged = self._figures.charged.of
        return sum(count for (_, uid), count in self._figures.readers.items() if charged(uid) == user)

    def count_of_stream(self, stream: StreamFigures) -> int:
        """Return the number of readers of *stream*."""
        return sum(count for (number, _), count in self._figures.readers.items() if number == stream.id)

    def forget_stream(self, stream: StreamFigures) -> None:
        """Remove all readers of *stream*."""
        for number, uid in list(self._figures.readers):
            if number == stream.id:
                self._figures.add_readers(stream, uid, -self._figures.readers[number, uid])
        self._run(_FORGET, (stream.id,))


SCAN_ROWS = 2_000
"""Messages, or keys, that one call looks at."""

REMOVED = "removed by retain, max_bytes or max_messages of the stream"
"""The reason of the gap at the beginning of a page whose messages were removed."""

_READ = f"SELECT {COLUMNS} FROM message WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
_LOOK = f"SELECT {HEAD} FROM message WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
_ONE = f"SELECT {COLUMNS} FROM message WHERE id = ?"
_TIME = "SELECT id, time FROM message WHERE id BETWEEN ? AND ? ORDER BY id LIMIT 1"
_FIRST = "SELECT id FROM message WHERE id BETWEEN ? AND ? ORDER BY id LIMIT 1"
_NEXT_KEY = "SELECT key FROM message WHERE stream = ? AND key > ? AND gap IS NULL ORDER BY key LIMIT 1"
_FIRST_KEY = "SELECT key FROM message WHERE stream = ? AND key >= ? AND gap IS NULL ORDER BY key LIMIT 1"
_OF_KEY = f"SELECT {COLUMNS} FROM message WHERE stream = ? AND key = ? AND gap IS NULL ORDER BY id DESC LIMIT 1"

_KEYS = KeySpace()


class Reading:
    """Reads the table of messages."""

    def __init__(self, database: Database, checksums: Checksums) -> None:
        self._run = database.execute
        self._checksums = checksums

    def read(self, stream: StreamFigures, from_seq: int, *, max_messages: int, max_bytes: int, pattern: bytes, now: int, date: int) -> Page:
        """Return messages and gaps from *from_seq* on; see Engine.read."""
        start = max(from_seq, 1)
        items: list[Stored | Gap] = []
        if 1 <= from_seq <= stream.removed_seq:
            items.append(Gap(stream.removed_seq, date, pattern, stream.removed_seq - from_seq + 1, REMOVED))
            start = stream.removed_seq + 1
        next_seq, room, looked = start, max_bytes, 0
        cursor = self._run(_LOOK if pattern else _READ, (*id_range(stream, start), SCAN_ROWS))
        try:
            for row in cursor:
                if len(items) >= max(max_messages, 1):
                    return Page(items, next_seq, stream.last_seq)
                looked += 1
                item = self._item(row, pattern, now)
                if item is not None:
                    room -= _size(item)
                    if room < 0 and items:
                        return Page(items, next_seq, stream.last_seq)
                    items.append(item)
                next_seq = seq_of(row[0]) + 1
        finally:
            cursor.close()
        if looked < SCAN_ROWS:
            next_seq = max(next_seq, stream.last_seq + 1)
        return Page(items, next_seq, stream.last_seq)

    def _item(self, row: Any, pattern: bytes, now: int) -> Stored | Gap | None:
        """Return the message or gap in *row*, or None if *pattern* does not match it or it has expired. A damaged one is a gap."""
        if pattern:
            if self._checksums.is_head_right(row) and not _matches(pattern, row[2], is_gap=row[8] is not None):
                return None
            (row,) = self._run(_ONE, (row[0],)).fetchall()
        if not self._checksums.are_right(row):
            return Gap(seq_of(row[0]), row[1] if isinstance(row[1], int) else 0, b"", 1, DAMAGED)
        return None if row[8] is not None and row[8] <= now else item_of(row)

    def first_seq(self, stream: StreamFigures) -> int:
        """Return the number of the first message or gap, or the next number if the stream is empty."""
        return next((seq_of(number) for (number,) in self._run(_FIRST, id_range(stream)).fetchall()), stream.last_seq + 1)

    def seq_at(self, stream: StreamFigures, time_ms: int) -> int:
        """Return the number of the first message at *time_ms* or later, by bisection; see Engine.seq_at."""
        low, high = self.first_seq(stream), stream.last_seq + 1
        while low < high:
            middle = (low + high) // 2
            found = self._run(_TIME, (message_id(stream.id, middle), message_id(stream.id, high - 1))).fetchall()
            if not found or found[0][1] >= time_ms:
                high = middle
            else:
                low = seq_of(found[0][0]) + 1
        found = self._run(_FIRST, (message_id(stream.id, low), message_id(stream.id, MAX_SEQ))).fetchall()
        return seq_of(found[0][0]) if found else stream.last_seq + 1

    def last(
        self, stream: StreamFigures, pattern: bytes, *, after_key: bytes | None, max_messages: int, max_bytes: int, now: int
    ) -> LastValues:
        """Return the newest message of each key; see Engine.last."""
        head = pattern.partition(b"*")[0]
        items: list[Stored] = []
        room, looked, position = max_bytes, 0, after_key
        while True:
            if position is None or position < head:
                found = self._run(_FIRST_KEY, (stream.id, head)).fetchall()
            else:
                found = self._run(_NEXT_KEY, (stream.id, position)).fetchall()
            if not found or not found[0][0].startswith(head):
                return LastValues(items, None)
            if looked >= SCAN_ROWS or len(items) >= max(max_messages, 1):
                return LastValues(items, position)
            looked += 1
            key = found[0][0]
            if _KEYS.matches(pattern, key) and (stored := self._newest(stream, key, now)) is not None:
                room -= size_of(key, stored.payload)
                if room < 0 and items:
                    return LastValues(items, position)
                items.append(stored)
            position = key

    def _newest(self, stream: StreamFigures, key: bytes, now: int) -> Stored | None:
        """Return the newest message of *key*, or None if it has expired or is damaged: an older one does not become the last value."""
        for row in self._run(_OF_KEY, (stream.id, key)).fetchall():
            if self._checksums.are_right(row) and (row[8] is None or row[8] > now):
                return message_of(row)
        return None


def _matches(pattern: bytes, key: bytes, *, is_gap: bool) -> bool:
    """Return whether *pattern* matches *key*, or any key that the pattern *key* of a gap matches."""
    return intersection(pattern, key) is not None if is_gap else _KEYS.matches(pattern, key)


def _size(item: Stored | Gap) -> int:
    """Return what *item* counts, in bytes."""
    return size_of(item.key, item.payload) if isinstance(item, Stored) else size_of(item.pattern, item.reason.encode())
