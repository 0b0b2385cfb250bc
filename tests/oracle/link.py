"""The client's end of a connection, as the model sees it: packets that the client has sent, and room for packets to it."""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol


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

    is_stream: bool
    """Its socket is a stream: packets are frames there."""

    def offer(self, packet: bytes) -> Outcome:
        """Give the client one packet, if it has room."""

    def offer_bytes(self, data: bytes) -> int | None:
        """Give a client whose socket is a stream as much of *data* as it has room for, and return how much; None: it has closed."""

    def read(self) -> Received | Stream:
        """Return the next packet of the client, or why there is none."""

    def watch(self, *, reads: bool, writes: bool, hang_up: bool) -> None:
        """Set what the connection is reported ready for."""

    def unread(self) -> int:
        """Return how many bytes of memory the packets take that the client has not read."""

    def has_more(self) -> bool:
        """Return whether the client has sent bytes that are not read yet."""

    def close(self) -> None:
        """End the connection."""
