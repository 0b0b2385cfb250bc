"""Routes each message to the inboxes that match: the bus delivers it once, however many subscriptions match. No I/O."""

from __future__ import annotations

from sbusd.client.inbox import Inbox
from sbusd.protocol.keys import KeySpace

_CACHED_KEYS = 4_096
"""Keys in the cache; when it is full it is cleared, so that a flood of keys cannot grow it."""


class Routes:
    """The inboxes of a connection, and a cache from keys to the inboxes that match."""

    __slots__ = ("_cache", "_inboxes", "_keyspace")

    def __init__(self, keyspace: KeySpace) -> None:
        self._keyspace = keyspace
        self._inboxes: list[Inbox] = []
        self._cache: dict[bytes, tuple[Inbox, ...]] = {}

    @property
    def inboxes(self) -> tuple[Inbox, ...]:
        """All inboxes, oldest first."""
        return tuple(self._inboxes)

    @property
    def only(self) -> Inbox | None:
        """The inbox, if there is exactly one."""
        return self._inboxes[0] if len(self._inboxes) == 1 else None

    def add(self, inbox: Inbox) -> None:
        """Add *inbox*."""
        self._inboxes.append(inbox)
        self._cache.clear()

    def discard(self, inbox: Inbox) -> bool:
        """Remove *inbox*; return whether it was there."""
        if inbox not in self._inboxes:
            return False
        self._inboxes.remove(inbox)
        self._cache.clear()
        return True

    def remove_pattern(self, pattern: bytes) -> Inbox | None:
        """Remove one instance of *pattern*, from the newest inbox that has it, and return that inbox; None if there is none."""
        for inbox in reversed(self._inboxes):
            if pattern in inbox.patterns:
                inbox.patterns.remove(pattern)
                self._cache.clear()
                return inbox
        return None

    def move(self, old: bytes, new: bytes) -> list[bytes]:
        """Replace *old* by *new* at the beginning of every pattern, and return the new patterns."""
        moved: list[bytes] = []
        for inbox in self._inboxes:
            for index, pattern in enumerate(inbox.patterns):
                if pattern.startswith(old):
                    inbox.patterns[index] = new + pattern[len(old) :]
                    moved.append(inbox.patterns[index])
        self._cache.clear()
        return moved

    def holds(self, pattern: bytes) -> bool:
        """Return whether an inbox has *pattern*."""
        return any(pattern in inbox.patterns for inbox in self._inboxes)

    def find(self, key: bytes) -> tuple[Inbox, ...]:
        """Return the inboxes that match *key*, oldest first."""
        found = self._cache.get(key)
        if found is None:
            found = tuple(inbox for inbox in self._inboxes if any(self._keyspace.matches(pattern, key) for pattern in inbox.patterns))
            if len(self._cache) >= _CACHED_KEYS:
                self._cache.clear()
            self._cache[key] = found
        return found
