"""What the feed has published about each key, and what it has to publish; without I/O.

Systemd can report thousands of changes in a second, and most are obsolete when they are read. So the table keeps the newest state of each
key, and publishes the difference to the published state: the first change of a key at once, later ones at most once per interval. The last
state of a key is always published. Only entries that appeared and were removed unpublished can be dropped, when there are too many of
them; they are counted.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sbus_services.feeds.netlink.entries import Attributes

INTERVAL_SECONDS = 0.1
"""Shortest interval between two publications of a key."""

MAX_UNPUBLISHED = 16_384
"""Removed entries that were never published, such as results of jobs, that wait for publication while the bus is slow."""


class ChangeKind(enum.Enum):
    """The kind of an event; the value is the payload's ``event``."""

    SNAPSHOT = "snapshot"
    NEW = "new"
    CHANGE = "change"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Change:
    """One message to publish. ``old`` has the published values of the fields that differ."""

    kind: ChangeKind
    key: str
    attributes: Attributes
    old: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class _Entry:
    """The state of one key. ``current`` is None after the removal, ``published`` before the first publication."""

    current: Attributes | None = None
    published: Attributes | None = None
    last: Attributes | None = None
    """The last values of a removed entry, until the removal is published."""
    next_time: float = float("-inf")
    is_queued: bool = False

    @property
    def is_pending(self) -> bool:
        """Whether there is something to publish."""
        return self.last is not None or (self.current is not None and self.current != self.published)


class ChangeTable:
    """The entries by key. Times are seconds of one monotonic clock."""

    def __init__(self, interval: float = INTERVAL_SECONDS, most: int = MAX_UNPUBLISHED) -> None:
        self.on_pending: Callable[[], None] = lambda: None
        """Called when there is something new to publish."""
        self.coalesced = 0
        """States that were replaced by newer ones before they were published."""
        self.dropped = 0
        """Entries that were removed before they were published, and dropped because too many waited."""
        self._interval = interval
        self._most = most
        self._entries: dict[str, _Entry] = {}
        self._queue: list[tuple[float, int, str]] = []
        self._number = 0
        self._unpublished: dict[str, None] = {}
        """Keys of removed entries that were never published, in the order of removal."""

    def __len__(self) -> int:
        """Return the number of entries in a snapshot."""
        return sum(entry.published is not None for entry in self._entries.values())

    def put(self, key: str, attributes: Attributes, now: float) -> bool:
        """Set the state of *key*, and return whether it differs from the last one."""
        entry = self._entries.setdefault(key, _Entry())
        if entry.current == attributes:
            return False
        self.coalesced += entry.is_pending
        if entry.last is not None:
            # It exists again before its removal was published: subscribers see a change.
            entry.last = None
            self._unpublished.pop(key, None)
        entry.current = attributes
        self._enqueue(key, entry, now)
        return True

    def remove(self, key: str, now: float, last: Attributes | None = None, *, is_notable: bool = True) -> None:
        """Remove *key*, whose last values are *last*, by default the current ones.

        An entry that was never published is published as removed only if it *is_notable*.
        """
        entry = self._entries.setdefault(key, _Entry())
        if last is None and entry.current is None:
            # Removed before, or never known.
            self._forget(key, entry)
            return
        last = last if last is not None else entry.current
        self.coalesced += entry.is_pending and last not in (entry.current, entry.last)
        entry.current = None
        if entry.published is None and not is_notable:
            self._forget(key, entry)
            return
        entry.last = last
        if entry.published is None:
            self._unpublished.pop(key, None)
            self._unpublished[key] = None
            self._drop_oldest()
        self._enqueue(key, entry, now)

    def due(self) -> float | None:
        """Return when to call :meth:`take` again, None if there is nothing to publish."""
        return self._queue[0][0] if self._queue else None

    def take(self, now: float) -> Change | None:
        """Return the change that is due longest, and record it as published; None if none is due."""
        while self._queue and self._queue[0][0] <= now:
            _, _, key = heapq.heappop(self._queue)
            entry = self._entries.get(key)
            if entry is None:
                continue
            entry.is_queued = False
            if not entry.is_pending:
                self._forget(key, entry)
            elif entry.next_time > now:
                # It was published out of turn since it was queued.
                self._enqueue(key, entry, now)
            else:
                return self._publish(key, entry, now)
        return None

    def take_all(self, now: float) -> list[Change]:
        """Return all pending changes, also those that are not due, and record them as published."""
        pending = [(key, entry) for key, entry in self._entries.items() if entry.is_pending]
        return [self._publish(key, entry, now) for key, entry in pending]

    def snapshot(self) -> list[Change]:
        """Return the published state, in the order of the keys."""
        return [
            Change(ChangeKind.SNAPSHOT, key, entry.published) for key, entry in sorted(self._entries.items()) if entry.published is not None
        ]

    def _publish(self, key: str, entry: _Entry, now: float) -> Change:
        """Record the pending change of *entry* as published, and return it."""
        before, last = entry.published, entry.last
        entry.next_time = now + self._interval
        entry.last = None
        if last is not None:
            entry.published = None
            self._unpublished.pop(key, None)
            # The entry stays until then, so that a key that is created and removed continuously is limited too.
            self._enqueue(key, entry, now)
            return Change(ChangeKind.REMOVE, key, last, _differences(before, last))
        current = entry.published = entry.current or {}
        kind = ChangeKind.NEW if before is None else ChangeKind.CHANGE
        return Change(kind, key, current, _differences(before, current))

    def _enqueue(self, key: str, entry: _Entry, now: float) -> None:
        """Queue *entry* for its next possible time."""
        if not entry.is_queued:
            entry.is_queued = True
            self._number += 1
            heapq.heappush(self._queue, (max(now, entry.next_time), self._number, key))
        self.on_pending()

    def _forget(self, key: str, entry: _Entry) -> None:
        """Remove an entry about which nothing is known or to be published."""
        if entry.current is None and entry.published is None and not entry.is_pending and not entry.is_queued:
            del self._entries[key]

    def _drop_oldest(self) -> None:
        """Drop removed entries that were never published if there are too many."""
        while len(self._unpublished) > self._most:
            key = next(iter(self._unpublished))
            del self._unpublished[key], self._entries[key]
            self.dropped += 1
        if len(self._queue) > 2 * (len(self._entries) + self._most):
            queued = {key: (time, number, key) for time, number, key in reversed(self._queue) if key in self._entries}
            self._queue = list(queued.values())
            heapq.heapify(self._queue)


def _differences(before: Mapping[str, object] | None, after: Attributes) -> Attributes:
    """Return the values in *before* that differ in *after*."""
    if before is None:
        return {}
    return {name: value for name, value in before.items() if after.get(name) != value}  # type: ignore[misc]
