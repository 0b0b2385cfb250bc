"""Runs of messages: those next to each other with the same key and sender, for which everything but the payloads is decided once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sbus.protocol.controls import FROM
from sbus.protocol.packet_runs import measure_run, replace_heads
from sbus.protocol.packets import LENGTH_BYTES, parse_batch

_FROM = b"CMSG " + FROM
_VERB = b"MSG "


class MessageRun(NamedTuple):
    """*messages* messages with *key*: packets in *body* from *place* on, each after its length of 32 bits.

    *sender* follows ``!/from/`` in each packet, and is empty if that is missing. *head* is the number of bytes of each packet before its
    payload, *longest* that of the longest payload.
    """

    key: bytes
    sender: bytes
    messages: int
    longest: int
    body: bytes
    place: int
    head: int

    def singles(self) -> Iterator[MessageRun]:
        """Yield the messages as runs of one."""
        place = self.place
        for _ in range(self.messages):
            size = _size(self.body, place)
            yield self._replace(messages=1, longest=size - self.head, place=place)
            place += LENGTH_BYTES + size

    @property
    def payload(self) -> bytes:
        """The payload of the first message."""
        begin = self.place + LENGTH_BYTES
        return self.body[begin + self.head : begin + _size(self.body, self.place)]

    def without_first(self, count: int) -> MessageRun:
        """Return the run without its first *count* messages, which are fewer than all."""
        place = self.place
        for _ in range(count):
            place += LENGTH_BYTES + _size(self.body, place)
        return self._replace(messages=self.messages - count, place=place)


class RunReader:
    """Takes the messages of *run* apart in their order, with *head* before their payloads."""

    def __init__(self, run: MessageRun, head: bytes) -> None:
        self._run = run
        self._head = head
        self._place = run.place
        self.left = run.messages
        """Number of messages that are not taken."""

    def take(self, most: int, *, is_first: bool) -> tuple[bytes, int]:
        """Return the next messages, each after its length, in at most *most* bytes; and their number.

        There may be none. If *is_first*, there is one, however long it is.
        """
        run = self._run
        body, count, place = replace_heads(run.body, self._place, self.left, run.head, self._head, most)
        if not count and is_first and self.left:
            body, count, place = replace_heads(run.body, self._place, 1, run.head, self._head, len(run.body) + len(self._head))
        self._place = place
        self.left -= count
        return body, count


def message_runs(body: bytes, place: int) -> Iterator[MessageRun | bytes]:
    """Yield the runs of messages in *body*, a batch from *place* on, and each packet that is not a message.

    Raises:
        ProtocolError: the batch is malformed, after all before the error was yielded, as with :func:`parse_batch`.
    """
    while True:
        end, count, head, longest = measure_run(body, place)
        if not head:
            # One place decides what is an error.
            yield next(parse_batch(body, place))
        else:
            words = body[place + LENGTH_BYTES : place + LENGTH_BYTES + head - 1]
            sender, nul, message = words.partition(b"\0")
            key = (message if nul else words)[len(_VERB) :]
            yield MessageRun(key, sender[len(_FROM) :] if nul else b"", count, longest - head, body, place, head)
        place = end
        if place >= len(body):
            return


def single_run(packet: bytes) -> MessageRun | None:
    """Return the run of *packet* alone, None if it is not a message."""
    (run,) = message_runs(len(packet).to_bytes(LENGTH_BYTES, "little") + packet, 0)
    return run if isinstance(run, MessageRun) else None


def _size(body: bytes, place: int) -> int:
    """Return the number of bytes of the packet whose length is at *place*."""
    return int.from_bytes(body[place : place + LENGTH_BYTES], "little")
