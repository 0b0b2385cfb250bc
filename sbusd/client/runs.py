"""The messages of a batch, left as they came until somebody reads them. No I/O. Spec: sbus-protocol(7) §6, ``!/batch``.

A batch that comes is looked through once, so that what is malformed, or from the bus itself, is met when it arrives. The messages that
stand in a row in it are a :class:`Run`: one object in a queue, in place of one for each message. Keys and payloads are copied out of
it when its turn comes, so what waits costs its own bytes and little more, and what is never read is never copied.
"""

from __future__ import annotations

from struct import Struct

from sbusd.client.messages import Message
from sbusd.protocol.batches import LENGTH_BYTES

_FRAME_BYTES = LENGTH_BYTES + len(b"MSG \0")
"""What a message costs in a batch beside its key and payload."""

_LENGTH = Struct("<I")

_VERB_BYTES = len(b"MSG ")


class Run:
    """Messages that stand in a row in *batch*, from *place* to *end*: *count* of them, at least one."""

    __slots__ = ("batch", "count", "end", "place")

    def __init__(self, batch: bytes, place: int, end: int, count: int) -> None:
        self.batch = batch
        self.place = place
        self.end = end
        self.count = count

    @property
    def size(self) -> int:
        """Bytes of all keys and payloads."""
        return self.end - self.place - self.count * _FRAME_BYTES

    def messages(self) -> list[Message]:
        """Return the messages, in their order."""
        return take_apart(self.batch, self.place, self.end)


def measure_run(batch: bytes, place: int) -> tuple[int, int]:
    """Return where the messages end that stand in a row in *batch* from *place* on, and how many they are, perhaps none.

    It ends in front of what is no message, or is malformed: that is for others to judge.
    """
    unpack, find, starts, count, size = _LENGTH.unpack_from, batch.find, batch.startswith, 0, len(batch)
    while place + _FRAME_BYTES <= size:
        begin = place + LENGTH_BYTES
        end = begin + unpack(batch, place)[0]
        if end > size or not starts(b"MSG ", begin, end) or find(b"\0", begin, end) < 0:
            break
        place = end
        count += 1
    return place, count


def take_apart(batch: bytes, place: int, end: int) -> list[Message]:
    """Return the messages from *place* to *end* of *batch*, as :func:`measure_run` has measured them."""
    unpack, find, messages = _LENGTH.unpack_from, batch.find, []
    while place < end:
        begin = place + LENGTH_BYTES
        place = begin + unpack(batch, place)[0]
        begin += _VERB_BYTES
        nul = find(b"\0", begin)
        messages.append(Message(batch[begin:nul], batch[nul + 1 : place]))
    return messages
