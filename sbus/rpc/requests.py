"""A request as a handler gets it, and as a service runs it. Spec: sbus-rpc(7) §3, §7."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sbus.protocol.credentials import Peer
from sbus.protocol.envelope import TEXT_LIMITS, Envelope
from sbus.protocol.errors import ProtocolError
from sbus.protocol.packets import MAX_PACKET_BYTES, publish_packet
from sbus.protocol.printable import printable
from sbus.rpc.cancellation import Cancellation
from sbus.rpc.handlers import InvalidResultError

Result = bytes | str | None
"""The result of a handler: bytes, text to encode in UTF-8, or None for no bytes."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request as a handler gets it: ``data`` from ``caller``, whose credentials the bus has verified.

    If a remote host calls, ``source`` is its number, and ``caller`` is not a user of this host: uid, gid and pid are -1, and ``key``
    begins with ``!/twin/<number>/``.
    """

    command: str
    data: bytes
    caller: Peer
    uid: str
    expires_at: float | None
    """Time in seconds since 1970 when the caller stops waiting; None for never."""
    source: int = 0
    """The number of the remote host that calls, as reported by the relay; 0 is this host."""
    context: str = ""
    """The trace context that the caller gave, a W3C traceparent; empty if there is none. It proves nothing."""
    cancelled: Cancellation = field(default_factory=Cancellation)
    """True when the caller has cancelled the request or has disconnected. Test it, or wait for it."""
    _charged: int | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        """The data as text. Raises UnicodeDecodeError, of which the caller gets the name, if they are not UTF-8."""
        return self.data.decode()

    def json(self) -> Any:
        """Return the value that the data have as JSON. Raises ValueError, of which the caller gets the name, if they are not JSON."""
        return json.loads(self.data)

    @property
    def party(self) -> tuple[int, int]:
        """The party that takes turns with others: a user of this host, or a remote host."""
        return self.caller.uid if self._charged is None else self._charged, self.source


Handler = Callable[[Request], Result | Awaitable[Result] | Iterator[Result] | AsyncIterator[Result]]

H = TypeVar("H", bound=Handler)


@dataclass(frozen=True, slots=True)
class Task:
    """A request to run, its handler, and the key for its response: empty if none is wanted."""

    request: Request
    handler: Handler
    envelope: Envelope
    reply_key: bytes
    key: bytes
    """Where the request was sent."""

    @property
    def place(self) -> tuple[int, str]:
        """The connection of the caller, and the ``uid``: no two requests at the same time have the same."""
        return self.request.caller.connection, self.request.uid

    @property
    def command(self) -> str:
        """The command."""
        return self.request.command

    @property
    def party(self) -> tuple[int, int]:
        """The user or remote host of the caller."""
        return self.request.party

    @property
    def window(self) -> int:
        """The number of the last part that the request grants; 0 if the caller does not accept parts."""
        return self.envelope.window if self.reply_key and not self.envelope.source else 0

    @property
    def cancelled(self) -> Cancellation:
        """Whether the request is cancelled."""
        return self.request.cancelled

    def answer(self, result: object, part: int = 0) -> bytes:
        """Return the packet of the response *result*, or of the error that it is too long, or no bytes if none is wanted.

        With the number of a *part*, other parts follow, and the result is empty if it is too long.

        Raises:
            InvalidResultError: *result* is neither bytes nor text nor None.
        """
        data = b"" if result is None else result.encode() if isinstance(result, str) else result
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidResultError(f"the result of the handler must be bytes, str or None, not {type(result).__name__}")
        packet = self._packet(bytes(data), "", part, more=1 if part else 0)
        return (
            packet if part else packet or self.error(f"response too long: {len(data)} bytes do not fit into a packet of {MAX_PACKET_BYTES}")
        )

    def error(self, words: str) -> bytes:
        """Return the packet of the error response, or no bytes if none is wanted."""
        return self._packet(b"", _cut(words) or "failed")

    def end(self, part: int) -> bytes:
        """Return the packet of the end of a stream, whose number follows that of the last part."""
        return self._packet(b"", "", part)

    def _packet(self, data: bytes, error: str, part: int = 0, more: int = 0) -> bytes:
        """Return the packet of the response, or no bytes if none is wanted or it is too long."""
        if not self.reply_key:
            return b""
        asked = self.envelope
        source = asked.destinations[0] if asked.destinations else 0
        reply = Envelope(
            command=asked.command,
            uid=asked.uid,
            data=data,
            reply_to=asked.reply_to,
            expires_seconds=asked.expires_seconds,
            sent_at=int(time.time()),
            error=error,
            source=source,
            destinations=(asked.source,) if asked.source else (),
            tries=asked.tries,
            part=part,
            more=more,
        )
        try:
            return publish_packet(self.reply_key, reply.encode())
        except ProtocolError:
            return b""


def _cut(words: str) -> str:
    """Return *words* as one printable line that fits into ``err``."""
    line = printable(words, TEXT_LIMITS["err"] // 4 - 1)
    return line.encode("utf-8")[: TEXT_LIMITS["err"]].decode("utf-8", "ignore")
