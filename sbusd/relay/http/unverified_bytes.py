"""Bytes of bodies whose senders are not verified: bounded for each party, for all addresses together, and for configured peers together.

The oldest body of a party is ended where a newer one of the same party finds no room: otherwise a user of a peer's host without a key
could keep the messages of the peer out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType

from sbusd.relay.addresses import AddressGroup, AddressGroups

PARTS = 8
"""One party may have this part of the bytes."""


class UnverifiedBytes:
    """All bodies that are being received. Configured peers have as many bytes again, which no other address can use up."""

    def __init__(self, groups: AddressGroups, most: int, body_bytes: int) -> None:
        """*most* bytes for configured peers, and *most* for all others; a party has room for one body of *body_bytes* in any case."""
        self._groups = groups
        self._most = most
        self._most_of_party = max(most // PARTS, body_bytes)
        self._of: Counter[AddressGroup] = Counter()
        self._total: Counter[bool] = Counter()
        self._bodies: dict[AddressGroup, dict[UnverifiedBody, None]] = {}
        """Those of each party that have bytes, the oldest first."""

    def body(self, address: str) -> UnverifiedBody:
        """Return the place of a body that comes from *address*; leave it when its sender is verified or refused."""
        return UnverifiedBody(self, self._groups.group(address))

    def acquire(self, body: UnverifiedBody, size: int) -> bool:
        """Return whether *body* may have *size* more bytes, and count them if so; older ones of its party are ended for that."""
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
        """Count *size* bytes less, which are all that *body* has."""
        group = body.group
        bodies = self._bodies.get(group, {})
        bodies.pop(body, None)
        if not bodies:
            self._bodies.pop(group, None)
        self._total[group.is_peer] -= size
        self._of[group] -= size
        if not self._of[group]:
            del self._of[group]  # or every address that ever came would be remembered


class UnverifiedBody:
    """The place of one body: a context, within which its bytes count."""

    end: Callable[[], None] | None = None
    """Called once if another body needs the room: has its reader stop."""
    is_evicted = False
    """Another body has its room."""

    def __init__(self, unverified: UnverifiedBytes, group: AddressGroup) -> None:
        self._unverified_bytes = unverified
        self.group = group
        self._size = 0

    def __enter__(self) -> UnverifiedBody:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave()

    def evict(self) -> None:
        """Give the room to another body."""
        self.is_evicted = True
        self._leave()
        if self.end is not None:
            self.end()

    def _leave(self) -> None:
        """Give all bytes back."""
        self._unverified_bytes.release(self, self._size)
        self._size = 0

    def grow(self, size: int) -> bool:
        """Return whether *size* more bytes may be kept."""
        if self.is_evicted or not self._unverified_bytes.acquire(self, size):
            return False
        self._size += size
        return True
