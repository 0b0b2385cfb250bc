"""What a client counts, so that nothing it loses, drops or retries is silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Statistics:
    """The counts of one bus object since it was connected; reconnections do not reset them."""

    received: int = 0
    """Packets read from the bus, of every kind."""
    delivered: int = 0
    """Messages put into subscriptions; one that two subscriptions match counts twice."""
    lost_local: int = 0
    """Messages dropped because a subscription was full, with ``Overflow.DISCARD``; each is in a ``Gap``."""
    lost_remote: int = 0
    """Packets that the bus said it discarded for this connection; each is in a ``Gap``."""
    lost_unknown: int = 0
    """How often the bus said that it had been killed, and does not know what it lost; each is a ``Gap`` of 0."""
    replaced: int = 0
    """Messages that the bus said it replaced by newer ones of their keys, with the order ``latest``; each is in a ``Replaced``."""
    unclaimed: int = 0
    """Messages that no subscription matched any more, and control messages that nobody waited for."""
    refusals: int = 0
    """Errors that the bus sent: ``!/bus/error``."""
    refusals_dropped: int = 0
    """Those of them that nobody was told of: no call waited, nobody received, and more came than are kept."""
    reconnects: int = 0
    """Connections made anew."""
    reconnect_attempts: int = 0
    """Tries to make them, failed ones too."""
    batches_received: int = 0
    """Packets that held several; ``received`` counts what was in them."""
    batches_sent: int = 0
    """Packets that held several publications or requests."""
    batchless: int = 0
    """Connections to a bus that was asked and does not take batches, so that each packet to it goes alone."""
    unsent: int = 0
    """Publications that were taken and never left, because the connection ended before there was room for them."""
    stray_answers: int = 0
    """Answers to calls that did not count: they came late, or from somebody who had not been called."""
    unwatched_callees: int = 0
    """Calls of services whose end would not have been heard, because the bus's rules hide it: such a call can only time out."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests that came to services of this bus object, and what became of them, by the names of sbus-rpc(7) §8."""
