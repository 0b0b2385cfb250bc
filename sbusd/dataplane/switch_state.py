"""The state that one switch hands to the next, so that clients notice no difference, and the valid ranges of its numbers.

Spec: sbusd(8), RESTARTS.

Each type is written to the bus's state as JSON, field by field. A new field gets a default, which is the meaning of an older bus's
state. An unknown field comes from a newer bus, whose state is rejected. pydantic checks the numbers; it is imported only when a state is
read, because a first start does not need it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class Within:
    """For :data:`typing.Annotated`: a number from ``low`` to below ``end``, which excludes infinity and NaN."""

    low: int
    end: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic checks it."""
        from pydantic_core import core_schema  # noqa: PLC0415 - see above

        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: float) -> float:
        """Return *value*. Raises ValueError if it is out of bounds."""
        if not self.low <= value < self.end:
            raise ValueError(f"{value} is not in the range {self.low} to {self.end}")
        return value


Count = Annotated[int, Within(0, 1 << 63)]
"""The range of a counter."""

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
    order: Annotated[int, Within(0, 5)] = 0
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
    """The progress of one connection; it survives a handover. The counters are those of the contract."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    received_packets: Count = 0
    received_bytes: Count = 0
    delivered_packets: Count = 0
    delivered_bytes: Count = 0
    lost_packets: Count = 0
    refused_packets: Count = 0
    unreported_losses: Count = 0
    """Lost packets that are not in a loss notice yet."""
    noticed_losses: Count = 0
    """Lost packets in loss notices that the sink does not know of yet."""
    blocks: tuple[Count, ...] = ()
    """Publishers that wait for it, by the number of their connection."""
    paces: tuple[Count, ...] = ()
    """Those that wait because they asked for pacing."""
    held_us: dict[UserId, Count] = field(default_factory=dict)
    """For how long recipients of other users have blocked it in the last second, by user, in microseconds."""
    blocking_ms: Count = 0
    """For how long it has blocked them without a break."""
    idle_ms: Count = 0
    """For how long its socket has taken nothing, while it blocks publishers."""
    progress_mark: Count = 0
    """The value of ``delivered_packets`` when its socket last took something."""
    has_fallen_back: bool = False
    """Its mode acts as ``discard`` until its queue has drained, because it blocked publishers for too long."""
    receipt_token: str | None = None
    """The token of the receipt for its next message, None for no receipt; each byte is the character with that number."""
    reads: Annotated[int, Within(1, 65)] = 64
    """Packets read from its socket at once; a batch is one packet here."""
    replaced_packets: Count = 0
    unreported_replacements: Count = 0
    """Replaced messages that are not in a notice yet."""
    blocked_ms: Count = 0
    """How long it has waited for recipients, in total."""
    blocked_others_ms: Count = 0
    """How long publishers have waited for it, in total."""
    receipt_always: bool = False
    """The receipt is sent in any case, not only if the message is undeliverable."""
    receipt_lists: bool = False
    """The receipt lists the recipients."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue of one connection. An entry is the place of a packet in the list of all packets, the place of the head that goes before it
    in the same packet, None for no head, and the uid of the publisher, None if unknown."""

    __pydantic_config__: ClassVar[dict[str, str]] = _FORBID_UNKNOWN

    waiting: tuple[QueueEntry, ...] = ()
    """Messages, in order of arrival."""
    notes: tuple[QueueEntry, ...] = ()
    """Packets of the bus itself that are not queued among messages."""
    unread: tuple[tuple[Count, bool], ...] = ()
    """Packets that the connection itself has sent and that are not handled yet, in order: the place of each, and whether the kernel
    truncated it. The rest of a batch is a batch."""
    fixed: Count = 0
    """The number of the first messages in ``waiting`` that are not replaced: they are older than the order ``latest``."""

    half_read: Count | None = None
    """Of a stream: the place of the beginning of a frame, from its length on, whose end has not come yet."""
    part_sent: tuple[QueueEntry, Annotated[int, Within(1, 1 << 32)], bool] | None = None
    """Of a stream: the packet whose frame was sent in part, how many bytes of the frame are left, and whether they wait for the next turn
    rather than for the socket."""
    lines: tuple[tuple[UserId | None, Count, Count, Count], ...] = ()
    """With the order ``fair``: the last entries of ``waiting`` are in lines of users, line after line. For each, in the order of their
    turns: the user, the number of entries, 0, and the losses in the notice at its end. Lines with losses that are in no notice follow: the
    user, 0, the number of losses, and 0."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no packet in it."""
        return not (self.waiting or self.notes or self.unread or self.has_rest) and self.half_read is None

    @property
    def has_rest(self) -> bool:
        """Whether the socket has taken a part of a frame."""
        return self.part_sent is not None

    def places(self) -> list[int]:
        """Return the places of all its packets."""
        sent = () if self.part_sent is None else (self.part_sent[0],)
        places = [max(place, head or 0) for place, head, _ in (*self.waiting, *self.notes, *sent)] + [place for place, _ in self.unread]
        return places + ([] if self.half_read is None else [self.half_read])


@dataclass(frozen=True, slots=True)
class SwitchTotals:
    """The totals of the switch; the names are those of ``SwitchCounters``."""

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
    redelivered_packets: Count = 0
    lost_by_user: dict[UserId, Count] = field(default_factory=dict)
    """Packets lost, for each user with a connection."""
    blocked_by_user: dict[UserId, tuple[Count, Count]] = field(default_factory=dict)
    """For each user with a connection: for how many milliseconds its publishers have waited, and publishers for its recipients."""
