"""Consecutive messages of a batch, which stay in the batch until they are read. No I/O. Spec: sbus-protocol(7) §6, ``!/batch``.

A received batch is scanned once, so that malformed packets, and packets of the bus itself, are handled when they arrive. Consecutive
messages are a :class:`MessageRun`: one object in a queue instead of one for each message. Keys and payloads are copied when the program
reads the run. So queued messages cost little more than their own bytes, and messages that are never read are never copied.
"""

from __future__ import annotations

from sbusd.client.messages import Message
from sbusd.protocol.batches import LENGTH_BYTES

try:
    from sbusd.client._speedups.scanner import join_batch, measure_run, message_of, take_apart
except ImportError:  # a tree that is not built: everything works, but slower; sbusctl doctor reports it
    from sbusd.client._speedups.plain_scanner import join_batch, measure_run, message_of, take_apart

__all__ = ["IS_COMPILED", "MessageRun", "join_batch", "measure_run", "message_of"]

IS_COMPILED = measure_run.__module__ == "sbusd.client._speedups.scanner"
"""Whether compiled code scans for messages."""

_FRAME_BYTES = LENGTH_BYTES + len(b"MSG \0")
"""Overhead of a message in a batch, in addition to its key and payload, in bytes."""


class MessageRun:
    """*count* consecutive messages, at least one, in *batch* from *place* to *end*."""

    __slots__ = ("batch", "count", "end", "place")

    def __init__(self, batch: bytes, place: int, end: int, count: int) -> None:
        self.batch = batch
        self.place = place
        self.end = end
        self.count = count

    @property
    def size(self) -> int:
        """Size of all keys and payloads, in bytes."""
        return self.end - self.place - self.count * _FRAME_BYTES

    def messages(self) -> list[Message]:
        """Return the messages, in their order."""
        return take_apart(self.batch, self.place, self.end)
