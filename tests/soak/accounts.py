"""The accounting of a soak: sent messages, and the messages that each subscriber must receive and has received. No I/O.

A *stream* is the messages of one publisher to one topic, numbered from 0. A subscriber's account opens when the bus has confirmed
its subscription, closes when everything sent before has been routed, and then balances::

    owed + asked == received + lost          owed: messages sent since it opened; asked: pings; received: both kinds

``lost`` is exactly the number that ``!/bus/lost`` reported.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

TOPIC_HEAD = b"soak/"


class SoakError(AssertionError):
    """The bus lost, duplicated, invented or reordered a message, or reported a wrong number of losses."""


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """One publisher's messages to one topic."""

    publisher: int
    topic: int


@dataclass(slots=True)
class SentCounts:
    """The number of messages sent in each stream."""

    sent: Counter[Stream] = field(default_factory=Counter)

    def write(self, stream: Stream, filler: bytes) -> bytes:
        """Return the next message of *stream*; call :meth:`count` when it has been sent."""
        return b"MSG %b%d\0%d %d %b" % (TOPIC_HEAD, stream.topic, stream.publisher, self.sent[stream], filler)

    def count(self, stream: Stream) -> None:
        """Count the message as sent."""
        self.sent[stream] += 1

    def uncount(self, stream: Stream) -> None:
        """Undo :meth:`count` for the last message of *stream*, which could not be sent."""
        self.sent[stream] -= 1

    def forget(self, stream: Stream) -> None:
        """Remove a stream that has ended, and that no open account includes."""
        del self.sent[stream]


def read(packet: bytes) -> tuple[Stream, int]:
    """Return the stream and the number of a message. Raises SoakError if it is not a message of the soak."""
    try:
        head, _, payload = packet.removeprefix(b"MSG " + TOPIC_HEAD).partition(b"\0")
        publisher, number, _ = payload.split(b" ", 2)
        return Stream(int(publisher), int(head)), int(number)
    except ValueError:
        raise SoakError(f"a packet that was never sent: {packet[:80]!r}") from None


class Account:
    """The messages that one subscriber to *topics* must receive, and has received, since :meth:`open`."""

    def __init__(self, name: str, topics: frozenset[int], *, in_order: bool) -> None:
        self.name = name
        self.topics = topics
        self.in_order = in_order
        """Whether its queue keeps the order in which the bus read the messages."""
        self.received = 0
        """Messages sent since it opened."""
        self.early = 0
        """Messages sent before it opened, and routed afterwards."""
        self.lost = 0
        self.asked = 0
        self.answered = 0
        self.is_open = False
        self.was_quiet = False
        """Whether no message was pending when it opened: then the account is exact, else early messages may have been lost too."""
        self._floor: dict[Stream, int] = {}
        self._next: dict[Stream, int] = {}
        self._seen: dict[Stream, set[int]] = {}

    def open(self, sent_counts: SentCounts, *, is_quiet: bool) -> None:
        """Open the account: the subscriber must receive all messages that *sent_counts* counts from now on."""
        self._floor = dict(sent_counts.sent)
        self.received = self.early = self.lost = self.asked = self.answered = 0
        self._seen.clear()
        self._next = {stream: number for stream, number in self._next.items() if stream in sent_counts.sent}
        self.is_open = True
        self.was_quiet = is_quiet

    def note(self, packet: bytes) -> None:
        """Count a received message. Raises SoakError if the subscriber must not receive it, or it is a duplicate or out of order."""
        stream, number = read(packet)
        if stream.topic not in self.topics:
            raise SoakError(f"{self.name} got {stream}, which it has not subscribed to")
        if self.in_order:
            if number < self._next.get(stream, 0):
                raise SoakError(f"{self.name} got number {number} of {stream} after number {self._next[stream] - 1}")
            self._next[stream] = number + 1
        else:
            seen = self._seen.setdefault(stream, set())
            if number in seen:
                raise SoakError(f"{self.name} got number {number} of {stream} twice")
            seen.add(number)
        if not self.is_open:
            return
        if number >= self._floor.get(stream, 0):
            self.received += 1
        else:
            self.early += 1

    def missing(self, sent_counts: SentCounts) -> int:
        """Return the number of messages and responses neither received nor reported as lost; below 0: surplus ones."""
        owed = sum(sent - self._floor.get(stream, 0) for stream, sent in sent_counts.sent.items() if stream.topic in self.topics)
        return owed + self.asked - self.received - self.answered - self.lost

    def close(self, sent_counts: SentCounts) -> None:
        """Close the account after everything has arrived. Raises SoakError if it does not balance."""
        missing = self.missing(sent_counts)
        self.is_open = False
        if missing > 0 or (missing < 0 and (self.was_quiet or not self.lost)):
            raise SoakError(f"{self.name}: {missing} packets are missing; received {self.received}, reported as lost {self.lost}")
