"""The counts of a client, so that every packet that it loses or drops, and every retry, is visible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Statistics:
    """The counts of one bus object since it was connected; reconnections do not reset them."""

    received: int = 0
    """Packets read from the bus, of every kind."""
    delivered: int = 0
    """Messages put into subscriptions; a message that two subscriptions match counts twice."""
    lost_local: int = 0
    """Messages discarded because a subscription was full, with ``Overflow.DISCARD``; each is in a ``Gap``."""
    lost_remote: int = 0
    """Packets for this connection that the bus discarded and reported; each is in a ``Gap``."""
    lost_unknown: int = 0
    """How often the bus reported an unknown loss, after a crash; each is a ``Gap`` of 0."""
    replaced: int = 0
    """Messages that the bus replaced by newer ones of the same key, with the order ``latest``; each is in a ``Replaced``."""
    unclaimed: int = 0
    """Messages that no subscription matched any more, and control messages that no call waited for."""
    refusals: int = 0
    """Errors that the bus sent: ``!/bus/error``."""
    refusals_dropped: int = 0
    """Refusals that were never raised: no call waited, the program did not receive, and there were more than are kept."""
    reconnects: int = 0
    """Successful reconnections."""
    reconnect_attempts: int = 0
    """Attempts to reconnect, including failed ones."""
    batches_received: int = 0
    """Packets that held several packets; ``received`` counts the packets in them."""
    batches_sent: int = 0
    """Packets that held several publications or requests."""
    batchless: int = 0
    """Connections to a bus that was asked and does not take batches, so that each packet is sent alone."""
    unsent: int = 0
    """Publications that were accepted and never sent, because the connection ended before there was room for them."""
    stray_answers: int = 0
    """Responses to calls that were dropped: they were late, or from a connection that was not called."""
    unwatched_callees: int = 0
    """Calls of services whose disconnection the bus's rules hide from this client: such a call can only time out."""
    blobs_gone: int = 0
    """Messages whose blob had ended, or could not be got; each is a ``BlobGone``."""
    jobs_lost: int = 0
    """Jobs of the store whose lease ended before they were acknowledged, for example with the connection: they run again."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """Requests to services of this bus object, by outcome, with the names of sbus-rpc(7) §8."""
