"""Queues that users share: when one is full, the user with the most bytes in it loses an item.

So a user alone can fill it, and each of *n* users keeps at least one *n*-th.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from sbus.protocol.credentials import local_author, make_peer, split_sender


class Owners:
    """Finds the users of messages. *charged* returns the user that is charged for a uid, such as `ChargedUsers.of`."""

    def __init__(self, charged: Callable[[int], int]) -> None:
        self._charged = charged

    def of(self, sender: bytes) -> int:
        """Return the user who is charged for messages of *sender*, which is valid, as after ``!/from/<id>/``.

        A service that vouches for a user of this host is not charged, but that user.
        """
        parts = split_sender(sender)
        if parts is None:
            raise ValueError(f"invalid sender {sender[:64]!r}")
        own, origin = parts
        author = local_author(origin)
        return self._charged(make_peer(0, own).uid if author is None else author.uid)


T = TypeVar("T")


class Queued(NamedTuple):
    """Bytes for a socket. *content* is the size of the head and the body of a message, None for all else."""

    data: bytes
    content: int | None = None


@dataclass(slots=True)
class _Held:
    """The items of one user, the oldest first, by their places in the queue, and their bytes."""

    places: deque[int] = field(default_factory=deque)
    bytes: int = 0


class _Entry(NamedTuple, Generic[T]):
    """An item, its size in bytes, and its user; None: it cannot be dropped."""

    item: T
    size: int
    owner: int | None


class SharedQueue(Generic[T]):
    """Items in their order. The caller knows the limit."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, _Entry[T]] = OrderedDict()
        self._users: dict[int, _Held] = {}
        self._next = 0
        self.bytes = 0
        """The size of all items."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, item: T, size: int, owner: int | None) -> None:
        """Add *item* of *size* bytes, for which *owner* is charged; None: it cannot be dropped."""
        self._entries[self._next] = _Entry(item, size, owner)
        self.bytes += size
        if owner is not None:
            held = self._users.setdefault(owner, _Held())
            held.places.append(self._next)
            held.bytes += size
        self._next += 1

    def pop(self) -> T:
        """Remove and return the oldest item. Raises KeyError if there is none."""
        _, entry = self._entries.popitem(last=False)
        if entry.owner is not None:
            self._users[entry.owner].places.popleft()
        return self._removed(entry)

    def drop_oldest(self) -> T | None:
        """Remove and return the oldest item of the user with the most bytes; None if no user has one."""
        return self._removed(self._entries.pop(self._most().places.popleft())) if self._users else None

    def drop_newest(self) -> T | None:
        """Remove and return the newest item of the user with the most bytes; None if no user has one."""
        return self._removed(self._entries.pop(self._most().places.pop())) if self._users else None

    def _most(self) -> _Held:
        """Return what the user with the most bytes has."""
        return max(self._users.values(), key=lambda held: held.bytes)

    def _removed(self, entry: _Entry[T]) -> T:
        """Return the item of *entry*, which is not in the queue any more."""
        self.bytes -= entry.size
        if entry.owner is not None:
            held = self._users[entry.owner]
            held.bytes -= entry.size
            if not held.places:
                del self._users[entry.owner]
        return entry.item


class Frame(NamedTuple):
    """One frame to send, with the number of its messages, and the user who is charged for it."""

    subject: str
    head: bytes
    body: bytes
    messages: int
    owner: int

    @property
    def cost(self) -> int:
        """Bytes that it is charged with, with an allowance for the objects."""
        return len(self.subject) + len(self.head) + len(self.body) + 256


class Spool:
    """A queue of frames. When it is full, the user with the most bytes loses the oldest frame.

    The receivers see dropped frames as a gap in the numbers, so loss here needs no further report.
    """

    def __init__(self, limit: int) -> None:
        """*limit* is in bytes; 0 keeps nothing."""
        self._limit = limit
        self._frames = SharedQueue[Frame]()

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def bytes(self) -> int:
        """What the frames are charged with."""
        return self._frames.bytes

    def add(self, frame: Frame) -> int:
        """Keep *frame*. Return the number of messages that were dropped for it."""
        self._frames.add(frame, frame.cost, frame.owner)
        dropped = 0
        while self.bytes > self._limit and (lost := self._frames.drop_oldest()) is not None:
            dropped += lost.messages
        return dropped

    def take(self) -> list[Frame]:
        """Return all frames in their order, and forget them."""
        return [self._frames.pop() for _ in range(len(self._frames))]
