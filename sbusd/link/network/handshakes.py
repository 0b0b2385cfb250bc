"""The connections whose certificate is not verified yet, and which of them is ended for a new one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

Id = TypeVar("Id", bound=Hashable)


class Handshakes(Generic[Id]):
    """At most *most* handshakes, and *most_of_address* of one address. A new one is always admitted, at the cost of an old one."""

    def __init__(self, most: int, most_of_address: int) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._addresses: dict[Id, str] = {}
        """Oldest first."""

    def __len__(self) -> int:
        return len(self._addresses)

    def admit(self, handshake: Id, address: str) -> Id | None:
        """Add *handshake*. Return the one to end, whose place is released: at a limit, the oldest of the address with most handshakes."""
        ended = self._victim(address)
        if ended is not None:
            self.release(ended)
        self._addresses[handshake] = address
        return ended

    def release(self, handshake: Id) -> bool:
        """Release the place of *handshake*; return whether it had one."""
        return self._addresses.pop(handshake, None) is not None

    def _victim(self, address: str) -> Id | None:
        """Return the handshake that makes room for one of *address*; None if there is room."""
        of = Counter(self._addresses.values())
        if of[address] < self._most_of_address:
            if len(self._addresses) < self._most:
                return None
            busiest = max(of, key=of.__getitem__)  # of several, that of the oldest handshake
            if of[address] < of[busiest]:  # an address ends no handshake of another one that has no more
                address = busiest
        return next(handshake for handshake, each in self._addresses.items() if each == address)
