"""What a switch reports about its work: counts of packets, the memory of queues, and which connections block which.

Spec: sbus-protocol(7) §6 and §7.
"""

from __future__ import annotations

from typing import NamedTuple

NAMED_WAITS = 4
"""How many recipients that block a connection are named, and how many publishers that it blocks: there may be thousands."""


class Wait(NamedTuple):
    """A wait of a publisher for a recipient, as seen from one of the two."""

    connection: int
    """The number of the other one."""
    is_paced: bool
    """The publisher waits because it asked for pacing; otherwise because the recipient asked to block publishers."""
    ms: int
    """Milliseconds since the wait began."""


class Waits(NamedTuple):
    """The recipients for which a connection waits, and the publishers that wait for it."""

    is_paced: bool
    blocked_by_count: int
    blocks_count: int
    blocked_ms: int
    """How long it has waited since it was adopted; simultaneous waits count once."""
    blocked_others_ms: int
    """How long publishers have waited for it, in total."""
    blocked_by: tuple[Wait, ...]
    """Recipients for which it waits, by number; at most :data:`NAMED_WAITS`, and fewer if very many connections wait."""
    blocks: tuple[Wait, ...]
    """Publishers that wait for it, by number; at most :data:`NAMED_WAITS`."""


class UserWaits(NamedTuple):
    """How long a user's publishers have waited, and publishers for its recipients, in total, since its oldest connection began."""

    blocked_ms: int
    blocked_others_ms: int


class UserCounters(NamedTuple):
    """The queues of all connections of a user now, and the packets lost to them since the user's oldest connection began.

    Here and below, ``queued_bytes`` is the memory that is charged."""

    queued_packets: int
    queued_bytes: int
    lost_packets: int
    half_read_bytes: int = 0
    """Memory for frames above 4 KiB whose ends its streams have not sent yet."""


class UserTraffic(NamedTuple):
    """What several connections of a user have done in total; the names are those of :class:`ConnectionCounters` and :class:`UserWaits`."""

    received_packets: int = 0
    received_bytes: int = 0
    delivered_packets: int = 0
    delivered_bytes: int = 0
    lost_packets: int = 0
    refused_packets: int = 0
    replaced_packets: int = 0
    blocked_ms: int = 0
    blocked_others_ms: int = 0


class ConnectionCounters(NamedTuple):
    """What one connection has done since it was adopted; packets and bytes count whole packets."""

    received_packets: int
    """All that was read from it, control packets too."""
    received_bytes: int
    delivered_packets: int
    """All that its socket took: messages, responses, errors."""
    delivered_bytes: int
    queued_packets: int
    """In its queue now. For a connection that has ended: what was in its queue then, without its last words, and was abandoned."""
    queued_bytes: int
    lost_packets: int
    """Packets for it that were discarded, because its queue was full or its socket could never take a packet of that size."""
    refused_packets: int
    """Its own MSG that were not routed."""
    replaced_packets: int
    """MSG in its queue that a newer one of the same key has replaced, with ``Order.LATEST``."""


class SwitchCounters(NamedTuple):
    """What the switch has done. ``deliveries == delivered + queued + lost + replaced + abandoned`` holds between turns."""

    connections: int
    accepted: int
    accept_failures: int
    """Calls of accept(2) that failed, because descriptors or memory were short. The peer was informed if possible."""
    received_packets: int
    received_bytes: int
    messages: int
    """MSG routed."""
    undeliverable: int
    """MSG without a recipient."""
    deliveries: int
    """Packets for clients: one for each recipient of a MSG, and one for each packet of the sink."""
    delivered_packets: int
    delivered_bytes: int
    queued_packets: int
    queued_bytes: int
    lost_packets: int
    abandoned_packets: int
    """Packets in the queue of a connection when it ended."""
    refused_packets: int
    subscriptions: int
    cache_hits: int
    cache_misses: int
    turns: int
    received_batches: int
    """Batches received. Their packets are counted as received, the batches themselves are not."""
    delivered_batches: int
    """Batches sent."""
    batched_packets: int
    """Packets in these."""
    blocks: int
    """Times that a publisher began to wait for a recipient."""
    fallbacks: int
    """Times that a recipient's mode fell back to ``discard``, because it had blocked publishers for too long."""
    replaced_packets: int
    """MSG in queues that a newer one of the same key has replaced: ``Order.LATEST``."""
    redelivered_packets: int
    """MSG in the queue of a member of a group that has ended, which another member got: deliveries, after they were abandoned."""
    held_bytes: int
    """Memory of all queued packets, each counted once although several queues share it: what ``queued_memory`` limits."""
    half_read_bytes: int
    """Memory for frames above 4 KiB whose ends have not come."""
