"""The queue of one subscription, with limits, and a policy for when it is full. No I/O.

Rules:

1. A queue is full when it reaches its limit in packets, or in bytes of keys and payloads. The packet that crosses the limit in bytes is
   still queued, so that every packet can be received whatever the limit: memory stays below the limit plus one packet. With
   ``Overflow.BLOCK`` the other packets of its batch are queued too: memory stays below the limit plus the largest packet.
2. A gap is exactly where packets are missing, between the last packet before and the first packet after. It needs no room.
3. Items that are not packets cannot grow the queue: gaps are merged, and so are consecutive reconnections and consecutive replacements.
4. Messages of one batch are queued as one :class:`~sbus.incoming.MessageRun`, and count as if each was queued alone. When
   the run is first in the queue, its messages move to ``ready``; they are then no longer in the queue, though not received yet.

:class:`Routes` routes each message to the inboxes that match: the bus delivers it once, however many subscriptions match. A message that
the connection got as a member of a queue group goes to one inbox of that group.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass

from sbus.arguments import check_count
from sbus.incoming import MessageRun
from sbus.items import Gap, Item, Message, Reconnected, Replaced
from sbus.protocol.keys import KeySpace, text_of
from sbus.protocol.memberships import split_stored, stored_pattern

QUEUE_PACKETS = 65_536
"""Default limit in packets. It limits the memory for small messages, each of which takes some 100 bytes more than its content."""

QUEUE_BYTES = 64 << 20
"""Default limit in bytes, the same as that of the bus's own queue for a client (see :class:`Overflow`)."""

LIST_ITEMS = 256
"""Items in a list by default: enough to spread the cost of a list, and few enough to be still in a core's cache when they are used. With
thousands, each item takes a third longer."""

_UNKNOWN = -1

_CACHED_KEYS = 4_096
"""Keys in the cache of routes; when it is full it is cleared, so that a flood of keys cannot grow it."""


class Overflow(enum.Enum):
    """The policy for a packet for a subscription whose queue is full."""

    BLOCK = "block"
    """The default. The connection is not read until there is room, so no packet is lost here. The bus then queues; when its queue is
    full too, it discards packets and reports their number (:class:`Gap`). All subscriptions of the connection wait for the full one,
    and so do replies. ``AsyncBus`` waits. ``Bus``, where only the caller can make room, raises ``InboxFull`` instead of waiting forever."""
    DISCARD = "discard"
    """The newest packet is discarded, only for this subscription, and counted; a :class:`Gap` is queued in its place."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a subscription's queue, and its policy. Raises ValueError if a limit is below 1, TypeError for another type."""

    packets: int = QUEUE_PACKETS
    bytes: int = QUEUE_BYTES
    overflow: Overflow = Overflow.BLOCK

    def __post_init__(self) -> None:
        for name, value in (("queue_packets", self.packets), ("queue_bytes", self.bytes)):
            check_count(value, name, 1)
        if not isinstance(self.overflow, Overflow):
            raise TypeError(f"overflow must be Overflow.BLOCK or Overflow.DISCARD, not {self.overflow!r}")


class Inbox:
    """The queue of one subscription, its patterns and its counters.

    All inboxes of a connection share ``stalled``: the inboxes that are full under ``Overflow.BLOCK``. While it is not empty, do not read.
    """

    __slots__ = (
        "_bytes",
        "_hidden",
        "_max_bytes",
        "_max_packets",
        "_overflow",
        "_stalled",
        "chosen_at",
        "delivered",
        "discarded",
        "group",
        "is_begun",
        "is_drained",
        "is_draining",
        "is_shared",
        "is_used",
        "items",
        "kept",
        "lost",
        "patterns",
        "ready",
        "receiver",
    )

    def __init__(self, patterns: list[bytes], bounds: Bounds, stalled: set[Inbox]) -> None:
        self.patterns = patterns
        self.group = _group_of(patterns)
        """The queue group that all its first patterns are of; empty if there is none."""
        self.chosen_at = 0
        """When a message of a group went to this inbox last: a count of :class:`Routes`."""
        self.is_begun = False
        """Whether the bus has accepted the patterns."""
        self.is_used = False
        """Whether the program has tried to subscribe, or to receive: otherwise it has forgotten that it has this."""
        self.is_draining = False
        """Whether the subscription ends when everything has arrived that the bus sent before the UNSUBs."""
        self.is_drained = False
        """Whether that has arrived."""
        self.kept: list[bytes] = []
        """The patterns that are still subscribed to while it is drained."""
        self.receiver = 0
        """The thread that received last from this queue; 0 if none has."""
        self.is_shared = False
        """Whether several threads have received from this queue: each then needs the lock for ``ready`` too."""
        self.delivered = 0
        """Messages received, including those that the session returns without queueing."""
        self.discarded = 0
        self.ready: deque[Message] = deque()
        """The next messages, of the batch that is being read: take them from the left, or with :meth:`take`."""
        self.items: deque[Item | MessageRun] = deque()
        """The items after those; other modules only read it."""
        self.lost = 0
        """Packets missing after the last item; below 0 if their number is unknown."""
        self._bytes = 0
        self._hidden = 0  # messages in runs, less one for each run
        self._max_packets = bounds.packets
        self._max_bytes = bounds.bytes
        self._overflow = bounds.overflow
        self._stalled = stalled

    def __len__(self) -> int:
        """Return the number of queued items, including a gap at the end."""
        return len(self.ready) + len(self.items) + self._hidden + (self.lost != 0)

    @property
    def is_empty(self) -> bool:
        """Whether no item is queued, so that a new message may be returned at once."""
        return not (self.items or self.ready or self.lost)

    @property
    def has_ended(self) -> bool:
        """Whether no item follows those that are queued."""
        return self.is_drained or not self.patterns

    def received_by(self, thread: int) -> None:
        """Note that *thread* receives from this queue."""
        if self.receiver != thread:
            self.is_shared = self.receiver != 0
            self.receiver = thread

    def clear(self) -> None:
        """Drop all items, without a gap."""
        self.ready.clear()
        self.items.clear()
        self.lost = self._bytes = self._hidden = 0
        self._stalled.discard(self)

    def put(self, message: Message) -> None:
        """Queue *message*, or under ``Overflow.DISCARD`` discard and count it if the queue is full."""
        items = self.items
        if self.lost or len(items) + self._hidden >= self._max_packets - 1 or self._bytes >= self._max_bytes >> 1:
            self._put_carefully(message)
            return
        items.append(message)
        self._bytes += len(message.key_bytes) + len(message.payload)
        self.delivered += 1
        if self._bytes >= self._max_bytes:
            self._mark_full()

    def put_run(self, run: MessageRun) -> None:
        """Queue the messages of *run*, as if each had arrived alone."""
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
        """Note that *lost* packets are missing here; 0 means an unknown number, perhaps none."""
        self.lost = self.lost + lost if lost and self.lost >= 0 else _UNKNOWN

    def put_reconnected(self, event: Reconnected) -> None:
        """Queue a reconnection."""
        items = self.items
        if items and isinstance(last := items[-1], Reconnected):
            items[-1] = Reconnected(last.attempts + event.attempts, last.seconds + event.seconds)
            return
        if self.lost:
            self._place_gap()
        items.append(event)

    def put_replaced(self, count: int) -> None:
        """Queue a note that *count* messages were replaced by newer ones, which follow."""
        items = self.items
        if items and not self.lost and isinstance(last := items[-1], Replaced):
            items[-1] = Replaced(last.count + count)
            return
        if self.lost:
            self._place_gap()
        items.append(Replaced(count))

    def take(self) -> Item | None:
        """Return the first item, or None if the queue is empty."""
        if self.ready:
            try:
                return self.ready.popleft()
            except IndexError:  # another thread has just taken it, as the last one without the lock
                pass
        items = self.items
        if not items:
            lost, self.lost = self.lost, 0
            return Gap(max(0, lost)) if lost else None
        item = items.popleft()
        if not items:
            self._bytes = 0
        elif type(item) is Message:
            self._bytes -= len(item.key_bytes) + len(item.payload)
        elif type(item) is MessageRun:
            self._bytes -= item.size
        if isinstance(item, MessageRun):
            item = self._open(item)
        if self._stalled and not self.is_full:
            self._stalled.discard(self)
        return item

    def take_many(self, limit: int) -> list[Item]:
        """Return the first items, at most *limit*; an empty list if the queue is empty."""
        taken: list[Item] = []
        ready = self.ready
        while len(taken) < limit and (item := self.take()) is not None:
            taken.append(item)
            if self.is_shared:
                continue
            if len(ready) <= limit - len(taken):
                taken.extend(ready)
                ready.clear()
            else:
                taken.extend([ready.popleft() for _ in range(limit - len(taken))])
        return taken

    def retire(self) -> None:
        """Drop all items, and stop blocking the connection: the program will not receive from this queue any more."""
        self.items.clear()
        self.ready.clear()
        self._bytes = self._hidden = self.lost = 0
        self._stalled.discard(self)

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached."""
        return len(self.items) + self._hidden >= self._max_packets or self._bytes >= self._max_bytes

    def _open(self, run: MessageRun) -> Message:
        """Move the messages of *run*, which has left the queue, to ``ready``, and return the first."""
        self._hidden -= run.count - 1
        messages = iter(run.messages())
        first = next(messages)
        self.ready.extend(messages)
        return first

    def _put_carefully(self, message: Message) -> None:
        """Queue *message* when a limit is near or a gap is open."""
        if self._overflow is Overflow.DISCARD and self.is_full:
            self.put_gap(1)
            self.discarded += 1
            return
        if self.lost:
            self._place_gap()
        self.items.append(message)
        self._bytes += len(message.key_bytes) + len(message.payload)
        self.delivered += 1
        if self.is_full:
            self._mark_full()

    def _place_gap(self) -> None:
        """Put the open gap into the queue."""
        self.items.append(Gap(max(0, self.lost)))
        self.lost = 0

    def _mark_full(self) -> None:
        """Stop the reading of the connection, if that is the policy."""
        if self._overflow is Overflow.BLOCK:
            self._stalled.add(self)


def _group_of(patterns: list[bytes]) -> bytes:
    """Return the queue group that all stored *patterns* are of; empty if there is none."""
    groups = {split_stored(pattern)[1] for pattern in patterns}
    return groups.pop() if len(groups) == 1 else b""


def inbox_text(owner: object, inbox: Inbox) -> str:
    """Return a description of *owner*, whose items are those of *inbox*."""
    patterns = " ".join(repr(text_of(split_stored(pattern)[0])) for pattern in inbox.patterns)
    return f"<{type(owner).__name__} to {patterns}, {len(inbox)} pending>" if patterns else f"<{type(owner).__name__}, closed>"


class Routes:
    """The inboxes of a connection, and a cache from keys to the inboxes that match."""

    __slots__ = ("_cache", "_choices", "_inboxes", "_keyspace")

    def __init__(self, keyspace: KeySpace) -> None:
        self._keyspace = keyspace
        self._inboxes: list[Inbox] = []
        self._choices = 0
        self._cache: dict[bytes, tuple[Inbox, ...]] = {}

    @property
    def inboxes(self) -> tuple[Inbox, ...]:
        """All inboxes, oldest first."""
        return tuple(self._inboxes)

    @property
    def only(self) -> Inbox | None:
        """The inbox, if there is exactly one."""
        return self._inboxes[0] if len(self._inboxes) == 1 else None

    def add(self, inbox: Inbox) -> None:
        """Add *inbox*."""
        self._inboxes.append(inbox)
        self._cache.clear()

    def discard(self, inbox: Inbox) -> bool:
        """Remove *inbox*; return whether it was there."""
        if inbox not in self._inboxes:
            return False
        self._inboxes.remove(inbox)
        self._cache.clear()
        return True

    def remove_pattern(self, pattern: bytes) -> Inbox | None:
        """Remove one instance of *pattern*, from the newest inbox that has it, and return that inbox; None if there is none."""
        for inbox in reversed(self._inboxes):
            if pattern in inbox.patterns:
                inbox.patterns.remove(pattern)
                self._cache.clear()
                return inbox
        return None

    def add_pattern(self, inbox: Inbox, pattern: bytes) -> None:
        """Add *pattern* to *inbox*."""
        inbox.patterns.append(pattern)
        self._cache.clear()

    def drop_pattern(self, inbox: Inbox, pattern: bytes) -> bool:
        """Remove one instance of *pattern* from *inbox*; return whether it was there."""
        if pattern not in inbox.patterns:
            return False
        inbox.patterns.remove(pattern)
        self._cache.clear()
        return True

    def move(self, old: bytes, new: bytes) -> list[bytes]:
        """Replace *old* by *new* at the beginning of every pattern, and return the new patterns."""
        moved: list[bytes] = []
        for inbox in self._inboxes:
            for index, pattern in enumerate(inbox.patterns):
                if pattern.startswith(old):
                    inbox.patterns[index] = new + pattern[len(old) :]
                    moved.append(inbox.patterns[index])
        self._cache.clear()
        return moved

    def holds(self, pattern: bytes) -> bool:
        """Return whether an inbox has *pattern*."""
        return any(pattern in inbox.patterns for inbox in self._inboxes)

    def find(self, key: bytes) -> tuple[Inbox, ...]:
        """Return the inboxes that match *key*, oldest first."""
        found = self._cache.get(key)
        if found is None:
            found = tuple(inbox for inbox in self._inboxes if any(self._keyspace.matches(pattern, key) for pattern in inbox.patterns))
            self._remember(key, found)
        return found

    def find_member(self, key: bytes, group: bytes) -> tuple[Inbox, ...]:
        """Return the inbox for a message with *key* that the connection got as a member of *group*; empty if none matches.

        Of several, it is the one with the fewest items; of those with as few, the one that was chosen least recently. The bus knows one
        member, the connection, so that the inboxes share its messages.
        """
        place = stored_pattern(key, group)  # no key has a NUL
        found = self._cache.get(place)
        if found is None:
            found = tuple(inbox for inbox in self._inboxes if any(self._is_of_member(stored, key, group) for stored in inbox.patterns))
            self._remember(place, found)
        if len(found) > 1:
            chosen = min(found, key=lambda inbox: (inbox.is_draining, inbox.is_full, len(inbox), inbox.chosen_at))
            self._choices += 1
            chosen.chosen_at = self._choices
            return (chosen,)
        return found

    def hand_over(self, inbox: Inbox) -> int:
        """Put the messages of *inbox*, which has been removed, into other inboxes of its group that match; return their number."""
        if not inbox.group:
            return 0
        moved = 0
        for item in inbox.take_many(len(inbox)):
            if isinstance(item, Message) and (found := self.find_member(item.key_bytes, inbox.group)):
                found[0].put(item)
                moved += 1
        return moved

    def _is_of_member(self, stored: bytes, key: bytes, group: bytes) -> bool:
        """Return whether a stored pattern is that of a member of *group* and matches *key*."""
        pattern, name = split_stored(stored)
        return name == group and self._keyspace.matches(pattern, key)

    def _remember(self, place: bytes, found: tuple[Inbox, ...]) -> None:
        """Put inboxes into the cache."""
        if len(self._cache) >= _CACHED_KEYS:
            self._cache.clear()
        self._cache[place] = found
