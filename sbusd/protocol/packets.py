"""The four kinds of packet, to bytes and back. Spec: sbus-protocol(7) §2.

Parsing is total: any bytes result in a packet or a :class:`ProtocolError`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.limits import MAX_PACKET_BYTES


@dataclass(frozen=True, slots=True)
class Subscribe:
    """``SUB <pattern>``: add an instance of a pattern, even if the same pattern is already stored."""

    pattern: bytes


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """``UNSUB <pattern>``: remove one stored instance of a pattern."""

    pattern: bytes


@dataclass(frozen=True, slots=True)
class Publish:
    """``MSG <key> NUL <payload>``: delivered to every client with a matching pattern, unchanged."""

    key: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Control:
    """``CMSG <key> [NUL <payload>]``: between one client and the bus. ``payload`` is None if there is no NUL."""

    key: bytes
    payload: bytes | None


Packet = Subscribe | Unsubscribe | Publish | Control


def parse_packet(data: bytes) -> Packet:
    """Return the packet in *data*, one complete datagram.

    Raises:
        ProtocolError: EMSGSIZE if it is longer than 409,600 bytes; EPROTO if it is not of the four kinds, or is a MSG without NUL.
    """
    if len(data) > MAX_PACKET_BYTES:
        raise ProtocolError(ErrorCode.EMSGSIZE, f"packet too long: {len(data)} bytes, at most {MAX_PACKET_BYTES} are allowed")
    verb, space, rest = data.partition(b" ")
    if not space:
        raise ProtocolError(ErrorCode.EPROTO, f"malformed packet {_excerpt(data)}: it must start with MSG, SUB, UNSUB or CMSG and a space")
    head, nul, tail = rest.partition(b"\0")
    if verb == b"MSG":
        if not nul:
            raise ProtocolError(ErrorCode.EPROTO, "malformed packet: MSG has no NUL between key and payload")
        return Publish(head, tail)
    if verb == b"SUB":
        return Subscribe(head)
    if verb == b"UNSUB":
        return Unsubscribe(head)
    if verb == b"CMSG":
        return Control(head, tail if nul else None)
    raise ProtocolError(ErrorCode.EPROTO, f"malformed packet {_excerpt(data)}: it must start with MSG, SUB, UNSUB or CMSG and a space")


def subscribe_packet(pattern: bytes) -> bytes:
    """Return ``SUB <pattern>``. Raises ProtocolError (EINVAL) if *pattern* has a NUL."""
    return b"SUB " + _without_nul("pattern", pattern)


def unsubscribe_packet(pattern: bytes) -> bytes:
    """Return ``UNSUB <pattern>``. Raises ProtocolError (EINVAL) if *pattern* has a NUL."""
    return b"UNSUB " + _without_nul("pattern", pattern)


def publish_packet(key: bytes, payload: bytes = b"") -> bytes:
    """Return ``MSG <key> NUL <payload>``.

    Raises:
        ProtocolError: EINVAL if *key* has a NUL; EMSGSIZE if the packet is longer than 409,600 bytes.
    """
    packet = b"MSG %b\0%b" % (_without_nul("key", key), payload)
    if len(packet) > MAX_PACKET_BYTES:
        raise ProtocolError(ErrorCode.EMSGSIZE, f"packet too long: {len(packet)} bytes, at most {MAX_PACKET_BYTES} are allowed")
    return packet


def control_packet(key: bytes, payload: bytes | None = None) -> bytes:
    """Return ``CMSG <key>`` and, unless *payload* is None, NUL and the payload. Raises ProtocolError (EINVAL) if *key* has a NUL."""
    packet = b"CMSG " + _without_nul("key", key)
    return packet if payload is None else b"%b\0%b" % (packet, payload)


def error_packet(code: ErrorCode, words: str) -> bytes:
    """Return ``CMSG !/bus/error NUL <ERRNO> <words>``, which the bus sends to a client. Spec: sbus-protocol(7) §8."""
    return control_packet(b"!/bus/error", f"{code.name} {words}".encode("utf-8", "backslashreplace"))


def parse_error(payload: bytes) -> tuple[ErrorCode | None, str]:
    """Return the code and words of an ``!/bus/error`` payload; the code is None if this version does not know it."""
    name, _, words = payload.decode("utf-8", "replace").partition(" ")
    return (ErrorCode[name], words) if name in ErrorCode.__members__ else (None, f"{name} {words}")


def _without_nul(what: str, value: bytes) -> bytes:
    """Return *value*, which precedes a NUL. If it had a NUL itself, the receiver would truncate it there."""
    if b"\0" in value:
        raise ProtocolError(ErrorCode.EINVAL, f"invalid {what} {_excerpt(value)}: it contains a NUL byte")
    return value


def _excerpt(data: bytes) -> str:
    """Return the beginning of *data* as printable text."""
    return repr(data[:24])[1:] + ("…" if len(data) > 24 else "")
