"""Durable readers: positions in streams, by user and name."""

from __future__ import annotations

from sbusd.protocol.printable import printable
from sbusd.store.engine.database import Database
from sbusd.store.engine.figures import AllFigures, StreamFigures
from sbusd.store.engine.messages import EngineError
from sbusd.store.engine.schema import MAX_SEQ

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
