"""The packets of the wire: the four kinds, and batches of them. Spec: sbus-protocol(7) §2, and §6 for ``!/batch``.

A batch is ``CMSG !/batch NUL``, and then of each packet its length (32 bits, little endian) and the packet itself.

Parsing a packet is total: any bytes result in a packet or a :class:`ProtocolError`. Parsing a batch is lazy: when the error of a malformed
batch is raised, the caller has handled the packets before it, as if they had arrived alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sbus.protocol.controls import BATCH, ERROR
from sbus.protocol.errors import ErrorCode, ProtocolError

MAX_PACKET_BYTES = 409_600
"""Largest accepted packet, as in the original server. The largest that a client can send depends on its SO_SNDBUF."""

MAX_BATCH_BYTES = 65_536
"""Largest batch that the bus and its clients make; a received batch may be as long as any packet.

A longer batch gains nothing: the cost of its system call is already spread over hundreds of small packets, while all of them wait for
the last. A batch of this size stays in a core's cache between writer and reader. It is at most a sixth of a socket's default buffer, so
that the reader reads one batch while the writer makes the next ones.
"""

BATCH_HEAD = b"CMSG %b\0" % BATCH
"""The beginning of a batch."""

BATCH_FEATURE = b"batch"
"""The name of batches in the response to ``!/bus/features``, if the bus takes them."""

LENGTH_BYTES = 4
"""Size of the length before each packet in a batch."""

_BARE_HEAD = BATCH_HEAD[:-1]

_FIRST = BATCH_HEAD[0]


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
    return control_packet(ERROR, f"{code.name} {words}".encode("utf-8", "backslashreplace"))


def parse_error(payload: bytes) -> tuple[ErrorCode | None, str]:
    """Return the code and words of an ``!/bus/error`` payload; the code is None if this version does not know it."""
    name, _, words = payload.partition(b"\0")[0].decode("utf-8", "replace").partition(" ")
    return (ErrorCode[name], words) if name in ErrorCode.__members__ else (None, f"{name} {words}")


def refused_key(payload: bytes) -> bytes | None:
    """Return the key of the message that an ``!/bus/error`` payload is about, or its beginning; None if it is about no message."""
    _, nul, key = payload.partition(b"\0")
    return key if nul else None


def is_batch(packet: bytes) -> bool:
    """Return whether *packet* has the key of a batch, well-formed or not."""
    return packet.startswith(BATCH_HEAD) or packet == _BARE_HEAD


def join_batch(packets: Iterable[bytes]) -> bytes:
    """Return the batch of *packets*, in their order.

    A sender should make batches of at most :data:`MAX_BATCH_BYTES`, and send a single packet alone.

    Raises:
        ProtocolError: EINVAL if there is no packet, or a packet is empty or itself a batch; EMSGSIZE if the batch is longer than
            409,600 bytes.
    """
    parts = [BATCH_HEAD]
    append = parts.append
    for packet in packets:
        if not packet:
            raise ProtocolError(ErrorCode.EINVAL, "malformed batch: it contains an empty packet")
        if packet[0] == _FIRST and is_batch(packet):
            raise ProtocolError(ErrorCode.EINVAL, "malformed batch: it contains another batch")
        append(len(packet).to_bytes(LENGTH_BYTES, "little"))
        append(packet)
    if len(parts) == 1:
        raise ProtocolError(ErrorCode.EINVAL, "malformed batch: it contains no packet")
    batch = b"".join(parts)
    if len(batch) > MAX_PACKET_BYTES:
        raise ProtocolError(ErrorCode.EMSGSIZE, f"batch too long: {len(batch)} bytes, at most {MAX_PACKET_BYTES} are allowed")
    return batch


def parse_batch(packet: bytes, place: int = len(BATCH_HEAD)) -> Iterator[bytes]:
    """Yield the packets in a batch, in their order; :func:`is_batch` must be true of *packet*.

    *place* is the offset of the length of the first packet to yield.

    Raises:
        ProtocolError: EINVAL if there is no packet. EINVAL, after all packets before it were yielded, if a packet is empty or itself a
            batch, or if a length or a packet extends past the end. The rest is lost: its beginning is unknown.
    """
    end = len(packet)
    if place >= end:
        raise ProtocolError(ErrorCode.EINVAL, "malformed batch: it contains no packet")
    while place < end:
        start = place + LENGTH_BYTES
        if start > end:
            raise ProtocolError(ErrorCode.EINVAL, f"malformed batch: {end - place} bytes left for a length of {LENGTH_BYTES} bytes")
        length = int.from_bytes(packet[place:start], "little")
        place = start + length
        if place > end:
            raise ProtocolError(ErrorCode.EINVAL, f"malformed batch: {end - start} bytes left for a packet of {length} bytes")
        inner = packet[start:place]
        if not inner:
            raise ProtocolError(ErrorCode.EINVAL, "malformed batch: it contains an empty packet")
        if is_batch(inner):
            raise ProtocolError(ErrorCode.EINVAL, "malformed batch: it contains another batch")
        yield inner


def _without_nul(what: str, value: bytes) -> bytes:
    """Return *value*, which precedes a NUL. If it had a NUL itself, the receiver would truncate it there."""
    if b"\0" in value:
        raise ProtocolError(ErrorCode.EINVAL, f"invalid {what} {_excerpt(value)}: it contains a NUL byte")
    return value


def _excerpt(data: bytes) -> str:
    """Return the beginning of *data* as printable text."""
    return repr(data[:24])[1:] + ("…" if len(data) > 24 else "")
