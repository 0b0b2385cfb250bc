"""The items of a subscription: messages, and events such as losses at their place between the messages."""

from __future__ import annotations

from dataclasses import dataclass

from sbusd.protocol.peers import Peer


@dataclass(frozen=True, slots=True)
class Message:
    """A publication: its routing key, without NUL, and its payload, any bytes.

    ``sender`` is the publisher, as verified by the bus, while ``sender/on`` is set for this connection; otherwise None.
    """

    key: bytes
    payload: bytes
    sender: Peer | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Here ``lost`` packets are missing; 0 means an unknown number, perhaps none, because the bus crashed and was restored.

    The bus discarded them because its queue for this connection was full. It is then not known which subscription they were for, and each
    gets the gap. Or this subscription's own inbox was full, with ``Overflow.DISCARD``.
    """

    lost: int


@dataclass(frozen=True, slots=True)
class Reconnected:
    """Here the connection was lost and made again, with all subscriptions; messages that were published meanwhile are missing.

    ``attempts`` is the number of attempts, of which the last succeeded; ``seconds`` is the time without a bus. The connection has a new
    address, and subscriptions under the old one have been moved to it. Modes set by ``tell`` and ``control`` have been set again; queued
    replies are lost. Consecutive reconnections are merged into one.
    """

    attempts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Replaced:
    """The bus replaced ``count`` messages in its queue for this connection by newer ones of the same keys, which follow.

    Only with the order ``latest``: ``bus.tell("order/latest")``. It is not known which subscription they were for, so each gets it.
    Consecutive replacements are merged into one.
    """

    count: int


Item = Message | Gap | Replaced | Reconnected
"""The items of a subscription."""
