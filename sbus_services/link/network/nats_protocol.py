"""The client protocol of NATS without I/O: an incremental parser of what a server sends, and the commands of a client.

Only what the link needs is here. Source: the reference of the client protocol, docs.nats.io/reference/reference-protocols/nats-protocol.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from sbus.protocol.printable import printable

MAX_LINE_BYTES = 1 << 16
"""Longest line of the server; INFO is the longest."""
MAX_PAYLOAD_BYTES = 64 << 20
"""The greatest max_payload that NATS knows; a server that announces more is not believed."""

PING, PONG = b"PING\r\n", b"PONG\r\n"

_END = b"\r\n"
_SHOWN_CHARACTERS = 60
_MAX_DIGITS = 10


class InvalidBytesError(Exception):
    """The server sent what is not its protocol, or too much of it. The text says what; then the connection cannot be used."""


class Info(NamedTuple):
    """What the server announces about itself."""

    fields: Mapping[str, Any]


class Delivery(NamedTuple):
    """A message. *header* has its version line, and is empty if there is none."""

    subject: bytes
    header: bytes
    payload: bytes


class ServerError(NamedTuple):
    """An error of the server, without quotes."""

    words: str


class Ping(NamedTuple):
    """The server requests a PONG."""


class Pong(NamedTuple):
    """The server has handled everything before a PING."""


Event = Info | Delivery | ServerError | Ping | Pong


class NatsParser:
    """Turns received bytes into events. Keeps at most one incomplete line or message, of at most *max_payload* bytes."""

    def __init__(self) -> None:
        self.max_payload = 0
        """The server's limit for header and payload together, from its first INFO."""
        self._buffer = bytearray()
        self._message: tuple[bytes, int, int] | None = None
        """Subject, size of the header, and size of header and payload, of a message that is not complete."""

    @property
    def is_within(self) -> bool:
        """Whether an incomplete line or message waits for its rest."""
        return bool(self._buffer) or self._message is not None

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that *chunk* completes. Raises InvalidBytesError; the events before that are lost."""
        buffer = self._buffer
        buffer += chunk
        events: list[Event] = []
        place = 0
        while True:
            if self._message is None:
                end = buffer.find(_END, place)
                if (end if end >= 0 else len(buffer)) - place > MAX_LINE_BYTES:
                    raise InvalidBytesError(f"the server sent a line of more than {MAX_LINE_BYTES} bytes")
                if end < 0:
                    break
                self._line(bytes(buffer[place:end]), events)
                place = end + len(_END)
            else:
                subject, header, size = self._message
                end = place + size
                if len(buffer) < end + len(_END):
                    break
                if buffer[end : end + len(_END)] != _END:
                    raise InvalidBytesError(f"the server sent invalid bytes: no line end after a message of {size} bytes")
                events.append(Delivery(subject, bytes(buffer[place : place + header]), bytes(buffer[place + header : end])))
                self._message = None
                place = end + len(_END)
        del buffer[:place]
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        """Handle a line without its end."""
        if line.startswith(b"MSG "):
            self._begin(line, line[4:].split(), has_header=False)
        elif line.startswith(b"HMSG "):
            self._begin(line, line[5:].split(), has_header=True)
        elif line == b"PING":
            events.append(Ping())
        elif line == b"PONG":
            events.append(Pong())
        elif line.startswith(b"-ERR "):
            events.append(ServerError(_error_words(line)))
        elif line.startswith(b"INFO "):
            events.append(self._info(line))
        elif line != b"+OK":
            raise InvalidBytesError(f"the server sent invalid bytes: {_shown(line)}")

    def _begin(self, line: bytes, words: list[bytes], *, has_header: bool) -> None:
        """Begin a message: its subject, the number of the subscription, perhaps a subject for replies, and one or two sizes."""
        count = 4 if has_header else 3
        if not count <= len(words) <= count + 1:
            raise InvalidBytesError(f"the server sent invalid bytes: {_shown(line)}")
        size = _number(words[-1], line)
        header = _number(words[-2], line) if has_header else 0
        if size > self.max_payload:
            raise InvalidBytesError(f"the server announced a message of {size} bytes; its maximum is {self.max_payload}")
        if header > size:
            raise InvalidBytesError(f"the server sent invalid bytes: {_shown(line)}")
        self._message = words[0], header, size

    def _info(self, line: bytes) -> Info:
        """Return the object in an INFO line."""
        try:
            fields = json.loads(line[5:])
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise InvalidBytesError(f"the server sent invalid bytes: {_shown(line)}")
        if not self.max_payload:
            most = fields.get("max_payload")
            self.max_payload = min(most, MAX_PAYLOAD_BYTES) if isinstance(most, int) and most > 0 else 0
        return Info(fields)


def connect(fields: Mapping[str, Any]) -> bytes:
    """Return the command that introduces the client."""
    return b"CONNECT %b\r\n" % json.dumps(fields).encode()


def subscribe(subject: bytes, number: int) -> bytes:
    """Return the command that begins the subscription *number*."""
    return b"SUB %b %d\r\n" % (subject, number)


def unsubscribe(number: int) -> bytes:
    """Return the command that ends the subscription *number*."""
    return b"UNSUB %d\r\n" % number


def publish(subject: bytes, header: bytes, payload: bytes) -> bytes:
    """Return the command that publishes a message. *header* has its version line and the empty line at its end."""
    return b"".join((b"HPUB %b %d %d\r\n" % (subject, len(header), len(header) + len(payload)), header, payload, _END))


def _number(digits: bytes, line: bytes) -> int:
    """Return the size in *digits*."""
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        raise InvalidBytesError(f"the server sent invalid bytes: {_shown(line)}")
    return int(digits)


def _error_words(line: bytes) -> str:
    """Return the text of an -ERR line."""
    words = line[5:].strip().strip(b"'")
    if not words:
        raise InvalidBytesError(f"the server sent invalid bytes: {_shown(line)}")
    return printable(words.decode("utf-8", "backslashreplace"))


def _shown(line: bytes) -> str:
    """Return the begin of *line* for an error text."""
    return printable(line[:_SHOWN_CHARACTERS])
