"""One subscription's received packets: a queue with bounds, and a policy for when it is full. No I/O.

Rules:

1. Full is: the bound in packets, or in bytes of keys and payloads, is reached. The packet that crosses the one in bytes is still taken, so
   that every packet can be received whatever the bound: memory stays below the bound plus one packet. With ``Overflow.BLOCK`` what
   came in one batch with it is taken too: below the bound plus the largest packet.
2. A gap stands exactly where packets are missing, between the last one before and the first one after. It takes no room.
3. Nothing that is not a packet can grow the queue: gaps, and reconnections and replacements with nothing between them, are added up.
4. Messages of one batch wait as one :class:`~sbusd.client.message_batch.Run`, and count as if each waited alone. Whose turn has come is in
   ``ready``: it has left the queue, though nobody has taken it yet.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from sbusd.client.message_batch import Run
from sbusd.client.messages import Gap, Item, Message, Reconnected, Replaced

QUEUE_PACKETS = 65_536
"""Default bound in packets: four times what the bus itself queues for a client by default, so that an answer that is
waited for always comes into reach (see :class:`Overflow`)."""

QUEUE_BYTES = 32 << 20
"""Default bound in bytes: four times the bus's own, for the same reason."""

AT_ONCE = 256
"""Items in a list by default: the cost of a list is spread over enough of them, and all are still in a core's own cache when they are
looked at. Thousands take a third longer, each."""

_UNKNOWN = -1


class Overflow(enum.Enum):
    """What becomes of a packet for a subscription whose queue is full."""

    BLOCK = "block"
    """The default. The connection is not read until there is room, so nothing is lost here; the bus then queues, and when its queue
    is full too it discards and says how many (:class:`Gap`). All subscriptions of the connection wait for the full one, and so
    do answers. ``AsyncBus`` waits; ``Bus``, where only the caller could make room, raises ``InboxFull`` instead of waiting for ever."""
    DISCARD = "discard"
    """The newest packet is dropped, for this subscription alone, and counted; a :class:`Gap` stands in its place."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a subscription's queue holds, and what happens then. Raises ValueError if it could hold nothing."""

    packets: int = QUEUE_PACKETS
    bytes: int = QUEUE_BYTES
    overflow: Overflow = Overflow.BLOCK

    def __post_init__(self) -> None:
        if self.packets < 1 or self.bytes < 1:
            raise ValueError(f"invalid limit of {self.packets} packets and {self.bytes} bytes: both must be at least 1")


class Inbox:
    """The queue of one subscription, the patterns that fill it, and what it has counted.

    ``stalled`` is shared by all inboxes of a connection: those that are full under ``Overflow.BLOCK``. While one is in it, do not read.
    """

    __slots__ = (
        "_bytes",
        "_hidden",
        "_max_bytes",
        "_max_packets",
        "_overflow",
        "_stalled",
        "delivered",
        "discarded",
        "items",
        "lost",
        "patterns",
        "ready",
    )

    def __init__(self, patterns: list[bytes], bounds: Bounds, stalled: set[Inbox]) -> None:
        self.patterns = patterns
        self.delivered = 0
        """Messages that came in, counted also where the session hands one over past the queue."""
        self.discarded = 0
        self.ready: deque[Message] = deque()
        """What comes next, of the batch that is being read: take it from the left, or by :meth:`take`."""
        self.items: deque[Item | Run] = deque()
        """What waits behind that, for others to look at only."""
        self.lost = 0
        """Packets missing behind the last item; below 0: nobody knows how many."""
        self._bytes = 0
        self._hidden = 0  # messages in runs, beyond one for each run
        self._max_packets = bounds.packets
        self._max_bytes = bounds.bytes
        self._overflow = bounds.overflow
        self._stalled = stalled

    def __len__(self) -> int:
        """Return how many items wait, a gap at the end included."""
        return len(self.ready) + len(self.items) + self._hidden + (self.lost != 0)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, so that what comes now may be handed over at once."""
        return not (self.items or self.ready or self.lost)

    def put(self, message: Message) -> None:
        """Queue *message*, or under ``Overflow.DISCARD`` drop and count it if the queue is full."""
        items = self.items
        if self.lost or len(items) + self._hidden >= self._max_packets - 1 or self._bytes >= self._max_bytes >> 1:
            self._put_carefully(message)
            return
        items.append(message)
        self._bytes += len(message.key) + len(message.payload)
        self.delivered += 1
        if self._bytes >= self._max_bytes:
            self._mark_full()

    def put_run(self, run: Run) -> None:
        """Queue the messages of *run*, as if each came alone."""
        count, size = run.count, run.size
        if self.lost or len(self.items) + self._hidden + count >= self._max_packets or self._bytes + size >= self._max_bytes:
            for message in run.messages():
                self.put(message)
            return
        self.items.append(run)
        self._hidden += count - 1
        self._bytes += size
        self.delivered += count

    def put_gap(self, lost: int) -> None:
        """Note that *lost* packets are missing here; 0: nobody knows how many, if any."""
        self.lost = self.lost + lost if lost and self.lost >= 0 else _UNKNOWN

    def put_reconnected(self, event: Reconnected) -> None:
        """Note that the connection was made anew here."""
        items = self.items
        if items and isinstance(last := items[-1], Reconnected):
            items[-1] = Reconnected(last.attempts + event.attempts, last.seconds + event.seconds)
            return
        if self.lost:
            self._place_gap()
        items.append(event)

    def put_replaced(self, count: int) -> None:
        """Note that *count* messages were replaced by newer ones, which come behind this."""
        items = self.items
        if items and not self.lost and isinstance(last := items[-1], Replaced):
            items[-1] = Replaced(last.count + count)
            return
        if self.lost:
            self._place_gap()
        items.append(Replaced(count))

    def take(self) -> Item | None:
        """Return what came first, or None if nothing waits."""
        if self.ready:
            return self.ready.popleft()
        items = self.items
        if not items:
            lost, self.lost = self.lost, 0
            return Gap(max(0, lost)) if lost else None
        item = items.popleft()
        if not items:
            self._bytes = 0
        elif type(item) is Message:
            self._bytes -= len(item.key) + len(item.payload)
        elif type(item) is Run:
            self._bytes -= item.size
        if isinstance(item, Run):
            item = self._open(item)
        if self._stalled and not self._is_full():
            self._stalled.discard(self)
        return item

    def take_many(self, limit: int) -> list[Item]:
        """Return what came first, up to *limit* items; none if nothing waits."""
        taken: list[Item] = []
        ready = self.ready
        while len(taken) < limit and (item := self.take()) is not None:
            taken.append(item)
            if len(ready) <= limit - len(taken):
                taken.extend(ready)
                ready.clear()
            else:
                taken.extend([ready.popleft() for _ in range(limit - len(taken))])
        return taken

    def retire(self) -> None:
        """Stop holding up the connection: nobody will receive from this queue any more. What waits is forgotten."""
        self.items.clear()
        self.ready.clear()
        self._bytes = self._hidden = self.lost = 0
        self._stalled.discard(self)

    def _open(self, run: Run) -> Message:
        """Take *run*, which has left the queue, apart, and return its first message."""
        self._hidden -= run.count - 1
        self.ready.extend(run.messages())
        return self.ready.popleft()

    def _put_carefully(self, message: Message) -> None:
        """Queue *message* where a bound is near or a gap is open."""
        if self._overflow is Overflow.DISCARD and self._is_full():
            self.put_gap(1)
            self.discarded += 1
            return
        if self.lost:
            self._place_gap()
        self.items.append(message)
        self._bytes += len(message.key) + len(message.payload)
        self.delivered += 1
        if self._is_full():
            self._mark_full()

    def _place_gap(self) -> None:
        """Put the open gap into the queue."""
        self.items.append(Gap(max(0, self.lost)))
        self.lost = 0

    def _is_full(self) -> bool:
        """Return whether a bound is reached."""
        return len(self.items) + self._hidden >= self._max_packets or self._bytes >= self._max_bytes

    def _mark_full(self) -> None:
        """Stop the connection from being read, where that is the policy."""
        if self._overflow is Overflow.BLOCK:
            self._stalled.add(self)
