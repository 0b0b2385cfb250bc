"""Several packets in one: ``CMSG !/batch NUL``, and then of each its length (32 bits, little endian) and the packet itself.
Spec: sbus-protocol(7) §6.

Taking apart is lazy: who handles the packets of a malformed batch one by one has handled those in front of the fault, as if they had
come alone, when the fault is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sbusd.protocol.controls import BATCH
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.limits import MAX_PACKET_BYTES

BATCH_HEAD = b"CMSG %b\0" % BATCH
"""What a batch begins with."""

BATCH_FEATURE = b"batch"
"""How a bus that takes batches says so in its answer to ``!/bus/features``."""

LENGTH_BYTES = 4
"""What each packet costs in a batch beside itself: its length in front of it."""

_BARE_HEAD = BATCH_HEAD[:-1]

_FIRST = BATCH_HEAD[0]


def is_batch(packet: bytes) -> bool:
    """Return whether *packet* says that it is a batch, well-formed or not."""
    return packet.startswith(BATCH_HEAD) or packet == _BARE_HEAD


def join_batch(packets: Iterable[bytes]) -> bytes:
    """Return the batch of *packets*, in their order.

    What a sender makes should be no longer than :data:`~sbusd.protocol.limits.MAX_BATCH_BYTES`, and one packet goes alone.

    Raises:
        ProtocolError: EINVAL if there is no packet, or one of no bytes, or one that is a batch itself; EMSGSIZE if the batch is longer
            than 409,600 bytes.
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
    """Yield the packets in a batch, in their order; *packet* is one for which :func:`is_batch` says yes.

    *place* is where the length of the first one stands that is wanted.

    Raises:
        ProtocolError: EINVAL if there is no packet, or, once all in front of it are yielded, if one has no bytes, or is a batch itself,
            or if a length or a packet goes past the end. What stands behind a fault is lost: nothing says where it begins.
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
