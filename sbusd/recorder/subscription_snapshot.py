"""The active subscriptions that the bus has reported. The record of each hour begins with them. Spec: sbus-record(5)."""

from __future__ import annotations

from collections.abc import Iterator

from sbusd.archive.record.kinds import Kind
from sbusd.archive.record.schema import Row

MAX_PATTERNS = 200_000
"""Maximum number of subscriptions. Each is a row in every hour, and uses a few hundred bytes of memory."""


class SubscriptionSnapshot:
    """Patterns by connection. ``forgotten`` counts subscriptions beyond the maximum; the record does not identify their recipients."""

    def __init__(self, most: int = MAX_PATTERNS) -> None:
        """Keep up to *most* subscriptions."""
        self.forgotten = 0
        self._most = most
        self._count = 0
        self._patterns: dict[int, dict[str, Row]] = {}

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return self._count

    def note(self, row: Row) -> None:
        """Apply *row* if it is about a subscription."""
        if row.conn is None:
            return
        if row.kind == Kind.DISCONNECT:
            self._count -= len(self._patterns.pop(row.conn, ()))
        elif row.key is None:
            return
        elif row.kind in {Kind.SUBSCRIBE, Kind.STANDING}:
            self._add(row.conn, row.key, row)
        elif row.kind == Kind.UNSUBSCRIBE and (held := self._patterns.get(row.conn)) and held.pop(row.key, None) is not None:
            self._count -= 1

    def knows(self, row: Row) -> bool:
        """Return whether the subscription of *row* is known."""
        return row.conn is not None and row.key in self._patterns.get(row.conn, ())

    def rows(self, ts: int) -> Iterator[Row]:
        """Yield a row with the time *ts* for each subscription."""
        for held in self._patterns.values():
            for row in held.values():
                yield row._replace(kind=Kind.STANDING, ts=ts)

    def clear(self) -> None:
        """Forget all: they may have ended."""
        self._patterns.clear()
        self._count = 0

    def _add(self, conn: int, pattern: str, row: Row) -> None:
        """Add one subscription, if there is room."""
        held = self._patterns.setdefault(conn, {})
        if pattern in held:
            return
        if self._count >= self._most:
            self.forgotten += 1
            return
        held[pattern] = row
        self._count += 1
