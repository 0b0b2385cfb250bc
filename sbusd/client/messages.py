"""What a subscription yields: messages, and in their place the events that a careful reader wants to know of."""

from __future__ import annotations

from dataclasses import dataclass

from sbusd.protocol.peers import Peer


@dataclass(frozen=True, slots=True)
class Message:
    """A publication: its routing key, without NUL, and its payload, any bytes.

    ``sender`` is who published it, by the bus's word, while ``sender/on`` holds for this connection; else None.
    """

    key: bytes
    payload: bytes
    sender: Peer | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Here ``lost`` packets are missing; 0: nobody knows how many, if any, for the bus was killed and went on.

    They were meant for this connection and discarded by the bus, whose queue for it was full: then which subscription they were for is not
    known, and each gets the gap. Or this subscription's own inbox was full, with ``Overflow.DISCARD``.
    """

    lost: int


@dataclass(frozen=True, slots=True)
class Reconnected:
    """Here the connection was lost and made anew, with all subscriptions; what was published meanwhile is missing.

    ``attempts`` counts tries, the last one succeeded; ``seconds`` is the time without a bus. The connection has another address, to
    which subscriptions under the old one have been moved; modes set by ``tell`` and ``control`` have been set again; queued answers are
    gone. Several in a row, with nothing between them, are added up into one.
    """

    attempts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Replaced:
    """So many messages that waited for this connection were replaced by newer ones of their keys, which come behind this.

    It comes with the order ``latest`` alone: ``bus.tell("order/latest")``. Which subscription they were for is not known, so each gets it.
    Several in a row, with nothing between them, are added up into one.
    """

    count: int


Item = Message | Gap | Replaced | Reconnected
"""What a subscription yields."""
