"""Frames that wait for the network, bounded in bytes. The oldest are dropped first."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Frame(NamedTuple):
    """One frame to send, with the number of its messages."""

    subject: str
    head: bytes
    body: bytes
    messages: int

    @property
    def cost(self) -> int:
        """Bytes that it is charged with, with an allowance for the objects."""
        return len(self.subject) + len(self.head) + len(self.body) + 256


class Spool:
    """A queue of frames. The receivers see dropped ones as a gap in the numbers, so loss here needs no further report."""

    def __init__(self, limit: int) -> None:
        """*limit* is in bytes; 0 keeps nothing."""
        self._limit = limit
        self._frames: deque[Frame] = deque()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: Frame) -> int:
        """Keep *frame*. Return the number of messages that were dropped for it."""
        self._frames.append(frame)
        self.bytes += frame.cost
        dropped = 0
        while self.bytes > self._limit:
            oldest = self._frames.popleft()
            self.bytes -= oldest.cost
            dropped += oldest.messages
        return dropped

    def take(self) -> list[Frame]:
        """Return all frames in their order, and forget them."""
        frames = list(self._frames)
        self._frames.clear()
        self.bytes = 0
        return frames
