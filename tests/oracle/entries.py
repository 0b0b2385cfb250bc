"""Packets in queues, which several queues may share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sbusd.dataplane.contract import waiting_bytes
from tests.oracle.pools import Payer


@dataclass(slots=True, eq=False)
class Packet:
    """One packet, shared by all queues that hold it."""

    data: bytes
    is_note: bool = False
    """The bus itself sends it: it keeps its place among such packets, whatever the order of messages."""
    holders: int = 0
    """Queue entries that refer to it."""
    handed: int = 0
    """Clients that took it at once."""
    queued: int = 0
    discarded: int = 0
    foreign_losses: int = 0
    """Of the discarded: for connections of other users than its publisher's."""
    missed: list[int] = field(default_factory=list)
    """Connections that it matched and that it did not reach."""
    origin: bytes = b""
    """Where it comes from, if its publisher vouches for it."""
    to: int = 0
    """The connection that it is for alone; 0: for all recipients."""


@dataclass(slots=True, eq=False)
class Entry:
    """A packet in a queue, with the prefix that goes out with it, and the user that is charged for its publisher."""

    packet: Packet
    prefix: Packet | None = None
    payer: Payer = None
    uid: Payer = None
    """The user itself; *payer* is the one that is charged for it."""

    @property
    def wire(self) -> bytes:
        """The bytes that the client gets."""
        return (self.prefix.data if self.prefix else b"") + self.packet.data

    @property
    def cost(self) -> int:
        """The memory that the recipient's user is charged with."""
        return waiting_bytes(len(self.packet.data), len(self.prefix.data) if self.prefix else 0)

    def parts(self) -> Iterator[Packet]:
        """Yield the packet and its prefix."""
        yield self.packet
        if self.prefix:
            yield self.prefix
