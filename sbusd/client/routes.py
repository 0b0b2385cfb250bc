"""Which inboxes of one connection a message goes to: the bus delivers it once, however many subscriptions match. No I/O."""

from __future__ import annotations

from sbusd.client.inbox import Inbox
from sbusd.protocol.keys import KeySpace

_CACHED_KEYS = 4_096
"""Keys whose inboxes are remembered; then the cache starts anew, so that no flood of keys can grow it."""


class Routes:
    """The inboxes of a connection, and a cache from key to those that a message with that key goes to."""

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
    def sole(self) -> Inbox | None:
        """The only inbox, if there is exactly one."""
        return self._inboxes[0] if len(self._inboxes) == 1 else None

    def add(self, inbox: Inbox) -> None:
        """Take *inbox* in."""
        self._inboxes.append(inbox)
        self._cache.clear()

    def discard(self, inbox: Inbox) -> bool:
        """Leave *inbox* out from now on; return whether it was there."""
        if inbox not in self._inboxes:
            return False
        self._inboxes.remove(inbox)
        self._cache.clear()
        return True

    def remove_pattern(self, pattern: bytes) -> Inbox | None:
        """Remove one instance of *pattern*, from the newest inbox that holds it, and return that one; None if none does."""
        for inbox in reversed(self._inboxes):
            if pattern in inbox.patterns:
                inbox.patterns.remove(pattern)
                self._cache.clear()
                return inbox
        return None

    def move(self, old: bytes, new: bytes) -> list[bytes]:
        """Let every pattern that begins with *old* begin with *new*, and return these patterns as they are now."""
        moved: list[bytes] = []
        for inbox in self._inboxes:
            for index, pattern in enumerate(inbox.patterns):
                if pattern.startswith(old):
                    inbox.patterns[index] = new + pattern[len(old) :]
                    moved.append(inbox.patterns[index])
        self._cache.clear()
        return moved

    def holds(self, pattern: bytes) -> bool:
        """Return whether an inbox holds *pattern*."""
        return any(pattern in inbox.patterns for inbox in self._inboxes)

    def find(self, key: bytes) -> tuple[Inbox, ...]:
        """Return the inboxes that a message with *key* goes to, oldest first."""
        found = self._cache.get(key)
        if found is None:
            found = tuple(inbox for inbox in self._inboxes if any(self._keyspace.matches(pattern, key) for pattern in inbox.patterns))
            if len(self._cache) >= _CACHED_KEYS:
                self._cache.clear()
            self._cache[key] = found
        return found
