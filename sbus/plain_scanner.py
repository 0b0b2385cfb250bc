"""Finds messages in packets, and joins packets: the reference for ``scanner`` in tests, and its replacement in a tree that is not built."""

from __future__ import annotations

from struct import Struct

from sbus.items import Message
from sbus.protocol.credentials import Peer
from sbus.protocol.packets import LENGTH_BYTES, join_batch

__all__ = ["join_batch", "measure_run", "message_of", "take_apart"]

_LENGTH = Struct("<I")

_VERB = b"MSG "

_LEAST_BYTES = len(b"MSG \0")


def measure_run(batch: bytes, place: int) -> tuple[int, int]:
    """Return where the consecutive messages in *batch* from *place* on end, and their number, which may be 0.

    They end before the first packet that is not a message or is malformed; the caller handles that packet.

    Raises:
        ValueError: *place* is negative.
    """
    if place < 0:
        raise ValueError("invalid place in a batch: must be 0 or more")
    unpack, find, starts, count, size = _LENGTH.unpack_from, batch.find, batch.startswith, 0, len(batch)
    while place <= size - LENGTH_BYTES - _LEAST_BYTES:
        begin = place + LENGTH_BYTES
        end = begin + unpack(batch, place)[0]
        if end > size or not starts(_VERB, begin, end) or find(b"\0", begin, end) < 0:
            break
        place = end
        count += 1
    return place, count


def take_apart(batch: bytes, place: int, end: int) -> list[Message]:
    """Return the messages from *place* to *end* of *batch*, which :func:`measure_run` has measured.

    Raises:
        ValueError: these bytes are not a run of messages.
    """
    if not 0 <= place <= end <= len(batch):
        raise ValueError("invalid run: not in the batch")
    unpack, find, starts = _LENGTH.unpack_from, batch.find, batch.startswith
    messages: list[Message] = []
    while place < end:
        begin = place + LENGTH_BYTES
        place = begin + (unpack(batch, place)[0] if begin <= end else 0)
        nul = find(b"\0", begin, place)
        if place > end or nul < 0 or not starts(_VERB, begin, place):
            raise ValueError("invalid run: not all of it are messages")
        messages.append(Message(batch[begin + len(_VERB) : nul], batch[nul + 1 : place]))
    return messages


def message_of(packet: bytes, sender: Peer | None = None) -> Message | None:
    """Return the message in *packet*, which is not a batch, with *sender*; None if the packet is not a message."""
    if packet.startswith(_VERB):
        nul = packet.find(b"\0", len(_VERB))
        if nul >= 0:
            return Message(packet[len(_VERB) : nul], packet[nul + 1 :], sender)
    return None
