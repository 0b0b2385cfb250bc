"""The ids of messages, by which a message that is put again is stored once."""

from __future__ import annotations

from sbus_services.store.engine.database import Database
from sbus_services.store.engine.figures import AllFigures, StreamFigures
from sbus_services.store.engine.messages import Sender

WINDOW_MS = 3_600_000
"""How long an id is remembered."""

MAX_IDS = 100_000
"""Ids that are remembered of each user in each stream: above it, the earliest are forgotten sooner."""

_FIND = "SELECT seq, time FROM put_id WHERE stream = ? AND account = ? AND id = ?"
_ADD = "INSERT OR REPLACE INTO put_id (stream, account, id, seq, time) VALUES (?, ?, ?, ?, ?)"
_OLDEST_OF_ACCOUNT = "SELECT id FROM put_id WHERE stream = ? AND account = ? ORDER BY seq LIMIT ?"
_DELETE = "DELETE FROM put_id WHERE stream = ? AND account = ? AND id = ?"
_OLDEST = "SELECT stream, account, id FROM put_id WHERE time <= ? ORDER BY time LIMIT ?"
_OF_STREAM = "SELECT stream, account, id FROM put_id WHERE stream = ? LIMIT ?"
_NEXT = "SELECT time FROM put_id ORDER BY time LIMIT 1"


def own_id(put_id: bytes, sender: Sender, account: int) -> bytes:
    """Return *put_id* of *sender* as it is in the table. Senders for whom one account pays do not know the ids of each other."""
    return put_id if account < 0 or account == sender.uid else b"%d\0%b" % (sender.uid, put_id)


class PutIds:
    """The table of ids."""

    def __init__(self, database: Database, figures: AllFigures) -> None:
        self._run = database.execute
        self._figures = figures

    def find(self, stream: StreamFigures, account: int, put_id: bytes, now: int) -> int | None:
        """Return the number of the message that *account* has put with *put_id* within the last hour, or None."""
        for seq, time in self._run(_FIND, (stream.id, account, put_id)).fetchall():
            if time > now - WINDOW_MS:
                return int(seq)
            self._remove([(stream.id, account, put_id)])
        return None

    def add(self, stream: StreamFigures, account: int, put_id: bytes, seq: int, now: int) -> None:
        """Remember *put_id*, which is not in the table."""
        usage = self._figures.usage_of(stream, account)
        if usage.ids >= MAX_IDS:
            oldest = self._run(_OLDEST_OF_ACCOUNT, (stream.id, account, usage.ids - MAX_IDS + 1)).fetchall()
            self._remove([(stream.id, account, each) for (each,) in oldest])
        self._run(_ADD, (stream.id, account, put_id, seq, now))
        usage.ids += 1

    def forget(self, now: int, max_rows: int) -> int:
        """Forget at most *max_rows* ids that are too old, and return how many."""
        return self._remove(self._run(_OLDEST, (now - WINDOW_MS, max_rows)).fetchall())

    def forget_stream(self, stream: StreamFigures, max_rows: int) -> int:
        """Forget at most *max_rows* ids of *stream*, and return how many."""
        return self._remove(self._run(_OF_STREAM, (stream.id, max_rows)).fetchall())

    def next_ms(self) -> int:
        """Return when the next id is too old, or 0 if there is none."""
        return next((time + WINDOW_MS for (time,) in self._run(_NEXT).fetchall()), 0)

    def _remove(self, rows: list[tuple[int, int, bytes]]) -> int:
        """Remove *rows* of stream, account and id."""
        streams = {each.id: each for each in self._figures.streams.values()}
        for row in rows:
            self._run(_DELETE, row)
            self._figures.usage_of(streams[row[0]], row[1]).ids -= 1
        return len(rows)
