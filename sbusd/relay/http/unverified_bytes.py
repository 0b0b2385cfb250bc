"""Limits on the bytes of bodies of unverified senders: for each address group, for configured peers, and for all other addresses.

If a group has no room for a new body, its oldest one is evicted. Otherwise a user without a key on a peer's host could block the
messages of the peer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType

from sbusd.relay.addresses import AddressGroup, AddressGroups

PARTS = 8
"""One group may have this fraction of the bytes."""


class UnverifiedBytes:
    """All bodies that are being received. Configured peers have a limit of their own, which other addresses cannot exhaust."""

    def __init__(self, groups: AddressGroups, most: int, body_bytes: int) -> None:
        """*most* bytes each for configured peers and for other addresses; a group always has room for *body_bytes*."""
        self._groups = groups
        self._most = most
        self._most_of_party = max(most // PARTS, body_bytes)
        self._of: Counter[AddressGroup] = Counter()
        self._total: Counter[bool] = Counter()
        self._bodies: dict[AddressGroup, dict[UnverifiedBody, None]] = {}
        """Bodies with bytes of each group, oldest first."""

    def body(self, address: str) -> UnverifiedBody:
        """Return a context for a body from *address*; leave it when the sender is verified or rejected."""
        return UnverifiedBody(self, self._groups.group(address))

    def acquire(self, body: UnverifiedBody, size: int) -> bool:
        """Reserve *size* more bytes for *body*, if necessary by evicting older bodies of its group; return whether it succeeded."""
        group = body.group
        while self._total[group.is_peer] + size > self._most or self._of[group] + size > self._most_of_party:
            oldest = next((each for each in self._bodies.get(group, ()) if each is not body), None)
            if oldest is None:
                return False
            oldest.evict()
        self._bodies.setdefault(group, {})[body] = None
        self._total[group.is_peer] += size
        self._of[group] += size
        return True

    def release(self, body: UnverifiedBody, size: int) -> None:
        """Release the *size* bytes of *body*, which are all that it has."""
        group = body.group
        bodies = self._bodies.get(group, {})
        bodies.pop(body, None)
        if not bodies:
            self._bodies.pop(group, None)
        self._total[group.is_peer] -= size
        self._of[group] -= size
        if not self._of[group]:
            del self._of[group]  # keeps the counter small


class UnverifiedBody:
    """One body: a context within which its bytes count."""

    end: Callable[[], None] | None = None
    """Called once if another body needs the room: must stop the reader."""
    is_evicted = False
    """Whether another body has taken the room."""

    def __init__(self, unverified: UnverifiedBytes, group: AddressGroup) -> None:
        self._unverified_bytes = unverified
        self.group = group
        self._size = 0

    def __enter__(self) -> UnverifiedBody:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave()

    def evict(self) -> None:
        """Give up the room for another body."""
        self.is_evicted = True
        self._leave()
        if self.end is not None:
            self.end()

    def _leave(self) -> None:
        """Release all bytes."""
        self._unverified_bytes.release(self, self._size)
        self._size = 0

    def grow(self, size: int) -> bool:
        """Reserve *size* more bytes; return whether it succeeded."""
        if self.is_evicted or not self._unverified_bytes.acquire(self, size):
            return False
        self._size += size
        return True
