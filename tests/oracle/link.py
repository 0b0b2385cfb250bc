"""The client's end of a connection, as the model sees it: packets that the client has sent, and room for packets to it."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sbusd.protocol.limits import MAX_PACKET_BYTES


class Outcome(enum.Enum):
    """The result of offering one packet to a client."""

    TAKEN = enum.auto()
    FULL = enum.auto()
    """There is no room now."""
    TOO_LONG = enum.auto()
    """There is never room for a packet of this length."""
    GONE = enum.auto()
    """The client has closed."""


class Stream(enum.Enum):
    """The reason why there is no packet to read."""

    EMPTY = enum.auto()
    SHUT = enum.auto()
    """The client has shut down its sending side, and may still receive."""
    CLOSED = enum.auto()
    BROKEN = enum.auto()


class Received(NamedTuple):
    """One packet of the client."""

    data: bytes
    is_cut: bool = False
    """It was longer than the longest packet; the rest is missing."""


class Ready(NamedTuple):
    """What a connection is ready for at the start of a turn."""

    number: int
    can_read: bool = True
    can_write: bool = False
    is_hung_up: bool = False


class Link(Protocol):
    """One client."""

    def offer(self, packet: bytes) -> Outcome:
        """Give the client one packet, if it has room."""

    def read(self) -> Received | Stream:
        """Return the next packet of the client, or why there is none."""

    def watch(self, *, reads: bool, writes: bool, hang_up: bool) -> None:
        """Set what the connection is reported ready for."""

    def close(self) -> None:
        """End the connection."""


@dataclass(slots=True)
class MemoryLink:
    """A client without a socket, for tests with a clock of their own."""

    room: int = 1 << 30
    """Packets that it still takes."""
    sent: deque[bytes] = field(default_factory=deque)
    received: list[bytes] = field(default_factory=list)
    reads: bool = True
    writes: bool = False
    is_closed: bool = False

    def offer(self, packet: bytes) -> Outcome:
        if self.is_closed:
            return Outcome.GONE
        if len(packet) > MAX_PACKET_BYTES:
            return Outcome.TOO_LONG
        if not self.room:
            return Outcome.FULL
        self.room -= 1
        self.received.append(packet)
        return Outcome.TAKEN

    def read(self) -> Received | Stream:
        if self.sent:
            return Received(self.sent.popleft())
        return Stream.CLOSED if self.is_closed else Stream.EMPTY

    def watch(self, *, reads: bool, writes: bool, hang_up: bool) -> None:
        self.reads, self.writes = reads, writes

    def close(self) -> None:
        self.is_closed = True

    def ready(self, number: int) -> Ready | None:
        """Return what the connection is ready for, None if for nothing."""
        can_read, can_write = self.reads and bool(self.sent or self.is_closed), self.writes and self.room > 0
        return Ready(number, can_read, can_write, self.is_closed) if can_read or can_write or self.is_closed else None
