"""What two links send each other without a server: frames in a TLS stream. All numbers are little-endian.

::

    frame = u32 length, u8 kind, content                the length is of kind and content
    HELLO = u8 version, realm                           the first frame in both directions
    MESSAGE = u16 length, subject, u16 length, head, body
    SUBSCRIBE, UNSUBSCRIBE = subject
    PING, PONG = u64 number                             the response repeats the number
    REJECTED = text
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

VERSION = 2
"""With serials at the end of heads; see `sbus_services.link.frames`."""

MAX_FRAME_BYTES = 1 << 20
"""Longest kind and content. A packet of the bus, of at most 409,600 bytes, always fits."""
MAX_SUBJECT_BYTES = 3_900
"""As over NATS."""
MAX_HEAD_BYTES = 1_024
MAX_TEXT_BYTES = 300
"""Longest text of REJECTED."""

_LENGTH = struct.Struct("<I")
_SHORT = struct.Struct("<H")
_NUMBER = struct.Struct("<Q")
_SUBJECT = re.compile(rb"[!-~]{1,%d}" % MAX_SUBJECT_BYTES)


class FrameKind(enum.IntEnum):
    """The second field of a frame."""

    HELLO = 1
    MESSAGE = 2
    SUBSCRIBE = 3
    UNSUBSCRIBE = 4
    PING = 5
    PONG = 6
    REJECTED = 7


class FrameError(Exception):
    """The other end sent what is not a frame, or one that is too long. The text says what."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame, its content checked by the functions below."""

    kind: FrameKind
    content: bytes


class FrameReader:
    """Cuts a stream into frames. Holds at most one incomplete frame, and never more bytes than have arrived."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def is_within_frame(self) -> bool:
        """Whether an incomplete frame waits for its rest."""
        return bool(self._buffer)

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the frames that *chunk* completes. Raises FrameError, after which the stream cannot be used."""
        self._buffer += chunk
        begin = 0
        while len(self._buffer) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, begin)
            if not 1 <= length <= MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes; it must have 1 to {MAX_FRAME_BYTES}")
            end = begin + _LENGTH.size + length
            if end > len(self._buffer):
                break
            yield Frame(_kind(self._buffer[begin + _LENGTH.size]), bytes(self._buffer[begin + _LENGTH.size + 1 : end]))
            begin = end
        del self._buffer[:begin]


def hello(realm: str) -> bytes:
    """Return the first frame."""
    return _frame(FrameKind.HELLO, bytes([VERSION]) + realm.encode("ascii"))


def message(subject: str, head: bytes, body: bytes) -> bytes | None:
    """Return the frame of a message, or None if it exceeds a limit."""
    name = subject.encode("ascii")
    content = b"".join((_SHORT.pack(len(name)), name, _SHORT.pack(len(head)), head, body)) if len(head) <= MAX_HEAD_BYTES else b""
    return _frame(FrameKind.MESSAGE, content) if content and len(content) < MAX_FRAME_BYTES else None


def subscribe(subject: str) -> bytes:
    """Return the frame of a new subscription."""
    return _frame(FrameKind.SUBSCRIBE, subject.encode("ascii"))


def unsubscribe(subject: str) -> bytes:
    """Return the frame that ends a subscription."""
    return _frame(FrameKind.UNSUBSCRIBE, subject.encode("ascii"))


def ping(number: int) -> bytes:
    """Return a frame to which the other end responds after everything before it."""
    return _frame(FrameKind.PING, _NUMBER.pack(number))


def pong(number: int) -> bytes:
    """Return the response to the ping *number*."""
    return _frame(FrameKind.PONG, _NUMBER.pack(number))


def rejected(text: str) -> bytes:
    """Return the frame that reports an error of the other end."""
    return _frame(FrameKind.REJECTED, text.encode()[:MAX_TEXT_BYTES])


def read_hello(content: bytes, realm: str) -> None:
    """Raise FrameError unless the other end has this version and realm."""
    if content[:1] != bytes([VERSION]):
        raise FrameError(f"version {content[0] if content else 'missing'} of the link protocol; this host has {VERSION}")
    if content[1:] != realm.encode("ascii"):
        raise FrameError(f"realm {content[1:65]!r}; this host is in {realm}")


def read_message(content: bytes) -> tuple[str, bytes, bytes]:
    """Return subject, head and body. Raises FrameError if a length is wrong, or the subject is not one."""
    subject, rest = _short(content, "subject")
    head, body = _short(rest, "head")
    if len(head) > MAX_HEAD_BYTES:
        raise FrameError(f"a head of {len(head)} bytes; the maximum is {MAX_HEAD_BYTES}")
    return read_subject(subject), head, body


def read_subject(content: bytes) -> str:
    """Return a subject. Raises FrameError if it is not one."""
    if not _SUBJECT.fullmatch(content):
        raise FrameError(f"invalid subject {content[:80]!r}: it must be 1 to {MAX_SUBJECT_BYTES} ASCII characters without spaces")
    return content.decode("ascii")


def read_number(content: bytes) -> int:
    """Return the number of a ping. Raises FrameError if there is none."""
    if len(content) != _NUMBER.size:
        raise FrameError(f"a ping of {len(content)} bytes; it must have {_NUMBER.size}")
    return int(_NUMBER.unpack(content)[0])


def _frame(kind: FrameKind, content: bytes) -> bytes:
    """Return a frame."""
    return b"".join((_LENGTH.pack(1 + len(content)), bytes([kind]), content))


def _kind(number: int) -> FrameKind:
    """Return the kind of a frame."""
    try:
        return FrameKind(number)
    except ValueError:
        raise FrameError(f"a frame of unknown kind {number}") from None


def _short(content: bytes, what: str) -> tuple[bytes, bytes]:
    """Return the bytes after their length, and the rest."""
    if len(content) < _SHORT.size:
        raise FrameError(f"a message that ends before its {what}")
    end = _SHORT.size + _SHORT.unpack_from(content)[0]
    if end > len(content):
        raise FrameError(f"a message whose {what} is longer than the frame")
    return content[_SHORT.size : end], content[end:]
