"""Messages in received packets, alone, in batches, and with their senders. No I/O. Spec: sbus-protocol(7) §6, ``!/batch`` and ``!/from/``.

A received batch is scanned once, so that malformed packets, and packets of the bus itself, are handled when they arrive. Consecutive
messages are a :class:`MessageRun`: one object in a queue instead of one for each message. Keys and payloads are copied when the program
reads the run. So queued messages cost little more than their own bytes, and messages that are never read are never copied.
"""

from __future__ import annotations

from sbus.items import Message
from sbus.protocol import controls
from sbus.protocol.credentials import Peer, parse_sender
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.packets import LENGTH_BYTES

try:
    from sbus.speedups import join_batch, measure_run, message_of, take_apart
except ImportError:  # a tree that is not built: everything works, but slower; sbusctl doctor reports it
    from sbus.plain_scanner import join_batch, measure_run, message_of, take_apart

__all__ = ["GROUP_HEAD", "IS_COMPILED", "SENT_HEAD", "MessageRun", "Senders", "join_batch", "measure_run", "message_of"]

IS_COMPILED = measure_run.__module__ == "sbus.speedups"
"""Whether compiled code scans for messages."""

_FRAME_BYTES = LENGTH_BYTES + len(b"MSG \0")
"""Overhead of a message in a batch, in addition to its key and payload, in bytes."""

SENT_HEAD = b"CMSG " + controls.FROM
"""The beginning of a message with its sender."""

GROUP_HEAD = b"CMSG " + controls.GROUP
"""The beginning of a message for a member of a queue group."""

_CACHED_SENDERS = 1_024
"""Senders in the cache; when it is full it is cleared, so that a flood of connections cannot grow it."""


class MessageRun:
    """*count* consecutive messages, at least one, in *batch* from *place* to *end*."""

    __slots__ = ("batch", "count", "end", "place")

    def __init__(self, batch: bytes, place: int, end: int, count: int) -> None:
        self.batch = batch
        self.place = place
        self.end = end
        self.count = count

    @property
    def size(self) -> int:
        """Size of all keys and payloads, in bytes."""
        return self.end - self.place - self.count * _FRAME_BYTES

    def messages(self) -> list[Message]:
        """Return the messages, in their order."""
        return take_apart(self.batch, self.place, self.end)


class Senders:
    """The senders of the messages that one connection has received."""

    __slots__ = ("_peers",)

    def __init__(self) -> None:
        self._peers: dict[bytes, Peer] = {}

    def message(self, packet: bytes) -> Message:
        """Return the message of a packet that begins with :data:`SENT_HEAD`.

        Raises:
            ProtocolError: EPROTO if it is malformed.
        """
        head, _, inner = packet.partition(b"\0")
        sender = self._peers.get(head)
        if sender is None:
            sender = parse_sender(head[5:])
            if len(self._peers) >= _CACHED_SENDERS:
                self._peers.clear()
            self._peers[head] = sender
        message = message_of(inner, sender)
        if message is None:
            raise ProtocolError(ErrorCode.EPROTO, f"the bus sent an invalid message with a sender: {inner[:24]!r}…")
        return message

    def message_of_group(self, packet: bytes) -> tuple[Message, bytes]:
        """Return the message of a packet that begins with :data:`GROUP_HEAD`, and the name of the group.

        Raises:
            ProtocolError: EPROTO if it is malformed.
        """
        head, _, inner = packet.partition(b"\0")
        message = self.message(inner) if inner.startswith(SENT_HEAD) else message_of(inner)
        if message is None:
            raise ProtocolError(ErrorCode.EPROTO, f"the bus sent an invalid message of a group: {inner[:24]!r}…")
        return message, head.removeprefix(GROUP_HEAD)
