"""Messages with their senders, while ``sender/on`` is set. No I/O. Spec: sbus-protocol(7) §6, ``!/from/``."""

from __future__ import annotations

from sbusd.client.message_batch import message_of
from sbusd.client.messages import Message
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.peers import Peer, parse_sender

SENT_HEAD = b"CMSG " + controls.FROM
"""The beginning of a message with its sender."""

_CACHED_SENDERS = 1_024
"""Senders in the cache; when it is full it is cleared, so that a flood of connections cannot grow it."""


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
