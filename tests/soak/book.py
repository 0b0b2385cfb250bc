"""The books of a soak: what was sent, what each subscriber must have, and what it got. No I/O.

A *stream* is the messages of one publisher to one topic, numbered from 0. A subscriber's account opens when the bus has confirmed
its subscription, closes when everything sent before has been routed, and then balances::

    owed + asked == received + lost          owed: messages sent since it opened; asked: pings; received: both kinds

``lost`` is what ``!/bus/lost`` told, no more and no less.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

TOPIC_HEAD = b"soak/"


class SoakError(AssertionError):
    """The bus lost, doubled, invented or reordered something, or told a wrong number."""


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """One publisher's messages to one topic."""

    publisher: int
    topic: int


@dataclass(slots=True)
class Book:
    """How many messages of each stream have been sent."""

    sent: Counter[Stream] = field(default_factory=Counter)

    def write(self, stream: Stream, filler: bytes) -> bytes:
        """Return the next message of *stream*; tell :meth:`count` when it has been sent."""
        return b"MSG %b%d\0%d %d %b" % (TOPIC_HEAD, stream.topic, stream.publisher, self.sent[stream], filler)

    def count(self, stream: Stream) -> None:
        """Note that the message was sent."""
        self.sent[stream] += 1

    def take_back(self, stream: Stream) -> None:
        """Note that the last message of *stream* was not sent after all."""
        self.sent[stream] -= 1

    def forget(self, stream: Stream) -> None:
        """Note that a stream is over and that no account is open any more that knows it."""
        del self.sent[stream]


def read(packet: bytes) -> tuple[Stream, int]:
    """Return the stream and the number of a message. Raises SoakError if it is none of the soak's."""
    try:
        head, _, payload = packet.removeprefix(b"MSG " + TOPIC_HEAD).partition(b"\0")
        publisher, number, _ = payload.split(b" ", 2)
        return Stream(int(publisher), int(head)), int(number)
    except ValueError:
        raise SoakError(f"a packet that nobody sent: {packet[:80]!r}") from None


class Account:
    """What one subscriber to *topics* must get and has got, from :meth:`open` on."""

    def __init__(self, name: str, topics: frozenset[int], *, in_order: bool) -> None:
        self.name = name
        self.topics = topics
        self.in_order = in_order
        """Whether its queue keeps the order in which the bus read the messages."""
        self.received = 0
        """Messages that are owed."""
        self.early = 0
        """Messages sent before it opened, and routed after."""
        self.lost = 0
        self.asked = 0
        self.answered = 0
        self.is_open = False
        self.was_quiet = False
        """Whether nothing was under way when it opened: then the account is exact, else what was early may have been lost too."""
        self._floor: dict[Stream, int] = {}
        self._next: dict[Stream, int] = {}
        self._seen: dict[Stream, set[int]] = {}

    def open(self, book: Book, *, is_quiet: bool) -> None:
        """Begin: all that *book* notes from now on is owed."""
        self._floor = dict(book.sent)
        self.received = self.early = self.lost = self.asked = self.answered = 0
        self._seen.clear()
        self._next = {stream: number for stream, number in self._next.items() if stream in book.sent}
        self.is_open = True
        self.was_quiet = is_quiet

    def note(self, packet: bytes) -> None:
        """Note a message that was received. Raises SoakError if it is not for this one, came before, or came too late."""
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

    def missing(self, book: Book) -> int:
        """Return how many messages and answers are owed and have neither come nor been told as lost; below 0: too many."""
        owed = sum(sent - self._floor.get(stream, 0) for stream, sent in book.sent.items() if stream.topic in self.topics)
        return owed + self.asked - self.received - self.answered - self.lost

    def close(self, book: Book) -> None:
        """End, when everything has come. Raises SoakError if the account does not balance."""
        missing = self.missing(book)
        self.is_open = False
        if missing > 0 or (missing < 0 and (self.was_quiet or not self.lost)):
            raise SoakError(f"{self.name}: {missing} packets are missing; received {self.received}, told of {self.lost} lost")
