"""Shared room for queued packets: rule 6 of sbusd/dataplane/contract.py."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sbusd.dataplane.counters import UserCounters

Payer = int | None
"""The uid of a packet's publisher; None for a connection without a user."""


@dataclass(slots=True)
class Pool:
    """Room that several users share: its bounds, its content, and the part that other users than its owner have published."""

    packets_limit: int
    bytes_limit: int
    packets: int = 0
    bytes: int = 0
    foreign_packets: Counter[int] = field(default_factory=Counter)
    foreign_bytes: Counter[int] = field(default_factory=Counter)

    def has_space(self, length: int) -> bool:
        """Return whether one more packet fits."""
        return self.packets < self.packets_limit and self.bytes + length <= self.bytes_limit

    def may_share(self, owner: Payer, payer: Payer, length: int) -> bool:
        """Return whether a packet of another user leaves at least as much room free as its publisher then holds."""
        if payer == owner or payer is None or owner is None:
            return True
        return (
            self.packets + self.foreign_packets[payer] + 1 <= self.packets_limit
            and self.bytes + self.foreign_bytes[payer] + length <= self.bytes_limit
        )

    def is_pressed(self, owner: Payer, payer: Payer, packets: int = 0, size: int = 0) -> bool:
        """Return whether less than a quarter of what the publisher may take is left after *packets* more packets."""
        packets, size, own_packets, own_bytes = self.packets + packets, self.bytes + size, packets, size
        if payer != owner and payer is not None and owner is not None:
            packets += own_packets + self.foreign_packets[payer]
            size += own_bytes + self.foreign_bytes[payer]
        return packets > self.packets_limit - self.packets_limit // 4 or size > self.bytes_limit - self.bytes_limit // 4

    def charge(self, owner: Payer, payer: Payer, length: int, sign: int = 1, *, packets: int = 1) -> None:
        """Add a packet, or remove it with *sign* -1; with *packets* 0 change the bytes alone."""
        self.packets += sign * packets
        self.bytes += sign * length
        if payer != owner and payer is not None and owner is not None:
            self.foreign_packets[payer] += sign * packets
            self.foreign_bytes[payer] += sign * length


@dataclass(slots=True, eq=False)
class Account:
    """One user: the room of all its connections together, and what it has lost."""

    uid: int
    room: Pool = field(default_factory=lambda: Pool(1 << 62, 1 << 62))
    connections: int = 0
    lost_packets: int = 0
    leaving: int = 0
    """Bytes of queues that were abandoned in this turn: they are freed at its end."""
    unread: int = 0
    """Bytes that its connections have sent and that were read, but not handled yet."""
    held_up: set[int] = field(default_factory=set)
    """Connections that are not read until ``unread`` is smaller."""

    def counters(self) -> UserCounters:
        """Return the counters of the contract."""
        return UserCounters(self.room.packets, self.room.bytes, self.lost_packets, 0)
