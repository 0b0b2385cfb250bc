"""Frames that wait for the network, bounded in bytes, which users share."""

from __future__ import annotations

from typing import NamedTuple

from sbusd.link.shared_queue import SharedQueue


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
