"""What one switch hands to the next, so that clients cannot tell them apart. Spec: sbusd(8), RESTARTS.

Each type is written to the bus's state as JSON, field by field. A field that is added gets a default, which is what an older
bus's state means; a field that is not known here is of a newer bus, whose state is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from sbusd.dataplane.bounds import Within

Count = Annotated[int, Within(0, 1 << 63)]
"""What a counter of the switch can have counted."""

UserId = Annotated[int, Within(0, (1 << 32) - 1)]

QueueEntry = tuple[Count, Count | None, UserId | None]

_FORBID_UNKNOWN = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What a client has asked for itself. It survives every restart."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    echo: bool = True
    """Whether it receives its own MSG that match its patterns."""
    soft: Annotated[int, Within(0, 4)] = 0
    """What happens to packets that its socket does not take: the number of a ``SoftMode``."""
    hard: Annotated[int, Within(1, 4)] = 1
    """What happens to packets that its queue does not take: the number of a ``HardMode``."""
    order: Annotated[int, Within(0, 4)] = 0
    """The order of messages in its queue: the number of an ``Order``."""
    sender: bool = False
    """Whether it receives each MSG as ``CMSG !/from/<id>/<cred> NUL <the MSG packet>``, with the number and the credentials of the
    sender, 0 for the bus itself. It applies to messages that are routed from now on. The whole length counts."""
    batch: bool = False
    """Whether it may receive several packets in one, as ``CMSG !/batch``."""
    pace: bool = False
    """Whether its messages wait for recipients of any user, instead of being discarded for them. Rules 5 and 6 of the contract apply.
    Recipients of another user block it for at most ``pace_limit`` of each second in total."""


@dataclass(frozen=True, slots=True)
class ConnectionProgress:
    """What one connection has done so far; it survives an orderly restart. The counters are those of the contract."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    received_packets: Count = 0
    received_bytes: Count = 0
    delivered_packets: Count = 0
    delivered_bytes: Count = 0
    lost_packets: Count = 0
    refused_packets: Count = 0
    untold: Count = 0
    """Lost, and the peer is not told yet."""
    unreported: Count = 0
    """Told to the peer, and the sink does not know yet."""
    blocks: tuple[Count, ...] = ()
    """Publishers that wait for it, by the number of their connection."""
    paces: tuple[Count, ...] = ()
    """Those of them that wait because they asked for pacing."""
    held_us: dict[UserId, Count] = field(default_factory=dict)
    """For how long recipients of other users have held it up in the last second, by user."""
    blocking_ms: Count = 0
    """How long it has blocked them."""
    idle_ms: Count = 0
    """How long its socket has taken nothing, counted while it blocks publishers."""
    progress_mark: Count = 0
    """What ``delivered_packets`` was then."""
    has_fallen_back: bool = False
    """Its mode acts as ``discard`` until its queue has drained, because it blocked publishers for too long."""
    receipt_token: str | None = None
    """The receipt that it has asked for its next message, None for none; the token's bytes are the characters of those numbers."""
    reads: Annotated[int, Within(1, 65)] = 64
    """Packets that are read from its socket at once; batches are packets here."""
    replaced_packets: Count = 0
    untold_replaced: Count = 0
    """Replaced, and the peer is not told yet."""
    blocked_ms: Count = 0
    """How long it has waited for recipients."""
    blocked_others_ms: Count = 0
    """How long publishers have waited for it, added up."""
    receipt_always: bool = False
    """That is for every message, and not for an undeliverable one alone."""


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits for one connection: each the place of a packet in the list of all, that of what goes out in front of it in one packet
    with it, None for nothing, and the uid that is charged for it, None for nobody."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    waiting: tuple[QueueEntry, ...] = ()
    """In order of arrival."""
    notes: tuple[QueueEntry, ...] = ()
    """The bus's own, which do not wait their turn among messages."""
    unread: tuple[tuple[Count, bool], ...] = ()
    """What the connection itself has sent and was not handled yet, in order: each the place of a packet, and whether the kernel had cut
    it. The rest of a batch that was being handled is a batch."""

    fixed: Count = 0
    """So many of the first in ``waiting`` are not replaced: they were there before the client chose the order ``latest``."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self.waiting and not self.notes and not self.unread


@dataclass(frozen=True, slots=True)
class SwitchTotals:
    """What the switch has done so far; the names are those of ``SwitchCounters``."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    accepted: Count = 0
    accept_failures: Count = 0
    received_packets: Count = 0
    received_bytes: Count = 0
    messages: Count = 0
    undeliverable: Count = 0
    deliveries: Count = 0
    delivered_packets: Count = 0
    delivered_bytes: Count = 0
    lost_packets: Count = 0
    abandoned_packets: Count = 0
    refused_packets: Count = 0
    cache_hits: Count = 0
    cache_misses: Count = 0
    turns: Count = 0
    received_batches: Count = 0
    delivered_batches: Count = 0
    batched_packets: Count = 0
    blocks: Count = 0
    fallbacks: Count = 0
    replaced_packets: Count = 0
    lost_by_user: dict[UserId, Count] = field(default_factory=dict)
    """Packets lost to each user who is there."""
    blocked_by_user: dict[UserId, tuple[Count, Count]] = field(default_factory=dict)
    """Of each of them, for how many milliseconds it has waited for recipients, and publishers for it."""
