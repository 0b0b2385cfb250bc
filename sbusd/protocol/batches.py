"""Several packets in one: ``CMSG !/batch NUL``, and then of each its length (32 bits, little endian) and the packet itself.
Spec: sbus-protocol(7) §6.

Parsing is lazy: when the error of a malformed batch is raised, the caller has handled the packets before it, as if they had arrived
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sbusd.protocol.controls import BATCH
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.limits import MAX_PACKET_BYTES

BATCH_HEAD = b"CMSG %b\0" % BATCH
"""The beginning of a batch."""

BATCH_FEATURE = b"batch"
"""The name of batches in the response to ``!/bus/features``, if the bus takes them."""

LENGTH_BYTES = 4
"""Size of the length before each packet in a batch."""

_BARE_HEAD = BATCH_HEAD[:-1]

_FIRST = BATCH_HEAD[0]


def is_batch(packet: bytes) -> bool:
    """Return whether *packet* has the key of a batch, well-formed or not."""
    return packet.startswith(BATCH_HEAD) or packet == _BARE_HEAD


def join_batch(packets: Iterable[bytes]) -> bytes:
    """Return the batch of *packets*, in their order.

    A sender should make batches of at most :data:`~sbusd.protocol.limits.MAX_BATCH_BYTES`, and send a single packet alone.

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
