"""Room for what waits, in the words of Python: the plain twin of the compiled ``pools``. A part of the reference switch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sbusd.dataplane.contract import UserCounters
from tests.oracle.pacing import Stopwatch

Payer = int | None
"""The uid of who published a packet, None for nobody."""


@dataclass(slots=True)
class Pool:
    """Room that several users share: its bounds, what is in it, and how much of that is from users other than its owner."""

    packets_limit: int
    bytes_limit: int
    packets: int = 0
    bytes: int = 0
    guest_packets: Counter[int] = field(default_factory=Counter)
    guest_bytes: Counter[int] = field(default_factory=Counter)

    def has_space(self, length: int) -> bool:
        """Return whether one more packet fits."""
        return self.packets < self.packets_limit and self.bytes + length <= self.bytes_limit

    def may_share(self, owner: Payer, payer: Payer, length: int) -> bool:
        """Return whether one more packet leaves at least as much free as its publisher then holds, if that is a guest."""
        if payer == owner or payer is None or owner is None:
            return True
        return (
            self.packets + self.guest_packets[payer] + 1 <= self.packets_limit
            and self.bytes + self.guest_bytes[payer] + length <= self.bytes_limit
        )

    def is_pressed(self, owner: Payer, payer: Payer, packets: int = 0, size: int = 0) -> bool:
        """Return whether so many more packets would leave less than a quarter of what their publisher may take."""
        packets, size, own_packets, own_bytes = self.packets + packets, self.bytes + size, packets, size
        if payer != owner and payer is not None and owner is not None:
            packets += own_packets + self.guest_packets[payer]
            size += own_bytes + self.guest_bytes[payer]
        return packets > self.packets_limit - self.packets_limit // 4 or size > self.bytes_limit - self.bytes_limit // 4

    def charge(self, owner: Payer, payer: Payer, length: int, sign: int = 1, *, packets: int = 1) -> None:
        """Account for a packet that begins to wait, or with *sign* -1 for one that waits no more; with no *packets* for bytes alone."""
        self.packets += sign * packets
        self.bytes += sign * length
        if payer != owner and payer is not None and owner is not None:
            self.guest_packets[payer] += sign * packets
            self.guest_bytes[payer] += sign * length


@dataclass(slots=True, eq=False)
class Account:
    """One user: what waits for all its connections, and how many those are."""

    uid: int
    room: Pool = field(default_factory=lambda: Pool(1 << 62, 1 << 62))
    connections: int = 0
    lost_packets: int = 0
    blocked: Stopwatch = field(default_factory=Stopwatch)
    """Its publishers that wait."""
    blocked_others: Stopwatch = field(default_factory=Stopwatch)
    """Publishers that wait for its recipients, once for each of these."""
    unread: int = 0
    """Bytes that its connections have sent and that are not handled yet."""
    held_up: set[int] = field(default_factory=set)
    """Connections that are not read until those are fewer."""

    def counters(self) -> UserCounters:
        """Return the counters of the contract."""
        return UserCounters(self.room.packets, self.room.bytes, self.lost_packets)
