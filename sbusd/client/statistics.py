"""What a client counts, so that nothing it loses, drops or retries is silent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Statistics:
    """The counts of one bus object since it was connected; reconnections do not reset them."""

    received: int
    """Packets read from the bus, of every kind."""
    delivered: int
    """Messages put into subscriptions; one that two subscriptions match counts twice."""
    lost_local: int
    """Messages dropped because a subscription was full, with ``Overflow.DISCARD``; each is in a ``Gap``."""
    lost_remote: int
    """Packets that the bus said it discarded for this connection; each is in a ``Gap``."""
    unclaimed: int
    """Messages that no subscription matched any more, and control messages that nobody waited for."""
    refusals: int
    """Errors that the bus sent: ``!/bus/error``."""
    refusals_dropped: int
    """Those of them that nobody was told of: no call waited, nobody received, and more came than are kept."""
    reconnects: int
    """Connections made anew."""
    reconnect_attempts: int
    """Tries to make them, failed ones too."""
