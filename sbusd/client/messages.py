"""What a subscription yields: messages, and in their place the events that a careful reader wants to know of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """A publication: its routing key, without NUL, and its payload, any bytes."""

    key: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """Here ``lost`` packets are missing.

    They were meant for this connection and discarded by the bus, whose queue for it was full: then which subscription they were for is not
    known, and each gets the gap. Or this subscription's own inbox was full, with ``Overflow.DISCARD``.
    """

    lost: int


@dataclass(frozen=True, slots=True)
class Reconnected:
    """Here the connection was lost and made anew, with all subscriptions; what was published meanwhile is missing.

    ``attempts`` counts tries, the last one succeeded; ``seconds`` is the time without a bus. Modes set by ``tell`` and ``control`` are
    the bus's defaults again, and queued answers are gone. Several in a row, with nothing between them, are added up into one.
    """

    attempts: int
    seconds: float


Item = Message | Gap | Reconnected
"""What a subscription yields."""
