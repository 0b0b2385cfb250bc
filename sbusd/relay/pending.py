"""Bytes of bodies whose senders are not verified: bounded for each party, for all addresses together, and for configured peers together."""

from __future__ import annotations

from collections import Counter
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

    def body(self, address: str) -> PendingBody:
        """Return the place of a body that comes from *address*; leave it when its sender is verified or refused."""
        return PendingBody(self, self._parties.party(address))

    def take(self, party: Party, size: int) -> bool:
        """Return whether *party* may have *size* more bytes, and count them if so."""
        if self._total[party.is_peer] + size > self._most or self._of[party] + size > self._most_of_party:
            return False
        self._total[party.is_peer] += size
        self._of[party] += size
        return True

    def give_back(self, party: Party, size: int) -> None:
        """Count *size* bytes less."""
        self._total[party.is_peer] -= size
        self._of[party] -= size
        if not self._of[party]:
            del self._of[party]  # or every address that ever came would be remembered


class PendingBody:
    """The place of one body: a context, within which its bytes count."""

    def __init__(self, pending: Pending, party: Party) -> None:
        self._pending = pending
        self._party = party
        self._size = 0

    def __enter__(self) -> PendingBody:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pending.give_back(self._party, self._size)
        self._size = 0

    def grow(self, size: int) -> bool:
        """Return whether *size* more bytes may be kept."""
        if not self._pending.take(self._party, size):
            return False
        self._size += size
        return True
