"""Bytes of bodies whose senders are not verified: bounded for each party, for all addresses together, and for configured peers together.

The oldest body of a party is ended where a newer one of the same party finds no room: otherwise a user of a peer's host without a key
could keep the messages of the peer out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import TracebackType

from sbusd.relay.addresses import Parties, Party

PARTS = 8
"""One party may have this part of the bytes."""


class Pending:
    """All bodies that are being received. Configured peers have as many bytes again, which no other address can use up."""

    def __init__(self, parties: Parties, most: int, body_bytes: int) -> None:
        """*most* bytes for configured peers, and *most* for all others; a party has room for one body of *body_bytes* in any case."""
        self._parties = parties
        self._most = most
        self._most_of_party = max(most // PARTS, body_bytes)
        self._of: Counter[Party] = Counter()
        self._total: Counter[bool] = Counter()
        self._bodies: dict[Party, dict[PendingBody, None]] = {}
        """Those of each party that have bytes, the oldest first."""

    def body(self, address: str) -> PendingBody:
        """Return the place of a body that comes from *address*; leave it when its sender is verified or refused."""
        return PendingBody(self, self._parties.party(address))

    def take(self, body: PendingBody, size: int) -> bool:
        """Return whether *body* may have *size* more bytes, and count them if so; older ones of its party are ended for that."""
        party = body.party
        while self._total[party.is_peer] + size > self._most or self._of[party] + size > self._most_of_party:
            oldest = next((each for each in self._bodies.get(party, ()) if each is not body), None)
            if oldest is None:
                return False
            oldest.evict()
        self._bodies.setdefault(party, {})[body] = None
        self._total[party.is_peer] += size
        self._of[party] += size
        return True

    def give_back(self, body: PendingBody, size: int) -> None:
        """Count *size* bytes less, which are all that *body* has."""
        party = body.party
        bodies = self._bodies.get(party, {})
        bodies.pop(body, None)
        if not bodies:
            self._bodies.pop(party, None)
        self._total[party.is_peer] -= size
        self._of[party] -= size
        if not self._of[party]:
            del self._of[party]  # or every address that ever came would be remembered


class PendingBody:
    """The place of one body: a context, within which its bytes count."""

    end: Callable[[], None] | None = None
    """Called once if another body needs the room: has its reader stop."""
    is_evicted = False
    """Another body has its room."""

    def __init__(self, pending: Pending, party: Party) -> None:
        self._pending = pending
        self.party = party
        self._size = 0

    def __enter__(self) -> PendingBody:
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
        self._pending.give_back(self, self._size)
        self._size = 0

    def grow(self, size: int) -> bool:
        """Return whether *size* more bytes may be kept."""
        if self.is_evicted or not self._pending.take(self, size):
            return False
        self._size += size
        return True
