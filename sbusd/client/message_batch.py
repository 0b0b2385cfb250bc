"""The messages of a batch, left as they came until somebody reads them. No I/O. Spec: sbus-protocol(7) §6, ``!/batch``.

A batch that comes is looked through once, so that what is malformed, or from the bus itself, is met when it arrives. The messages that
stand in a row in it are a :class:`Run`: one object in a queue, in place of one for each message. Keys and payloads are copied out of
it when its turn comes, so what waits costs its own bytes and little more, and what is never read is never copied.
"""

from __future__ import annotations

from sbusd.client.messages import Message
from sbusd.protocol.batches import LENGTH_BYTES

try:
    from sbusd.client._speedups.scanner import join_batch, measure_run, message_of, take_apart
except ImportError:  # a tree that is not built: all works, and slower; sbusctl doctor says so
    from sbusd.client._speedups.plain_scanner import join_batch, measure_run, message_of, take_apart

__all__ = ["IS_COMPILED", "Run", "join_batch", "measure_run", "message_of"]

IS_COMPILED = measure_run.__module__ == "sbusd.client._speedups.scanner"
"""Whether messages are found by compiled code."""

_FRAME_BYTES = LENGTH_BYTES + len(b"MSG \0")
"""What a message costs in a batch beside its key and payload."""


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
