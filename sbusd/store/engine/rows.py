"""Rows of the table of messages as messages and gaps."""

from __future__ import annotations

from typing import Any, NamedTuple

from sbusd.store.engine.messages import NO_UID, Gap, Sender, Stored
from sbusd.store.engine.schema import seq_of

MESSAGE_BYTES = 100
"""What a message or gap counts in addition to its key and payload: so small ones are not free."""

SENDER_UID = "COALESCE(message.uid, account)"
"""The uid of the sender, or the negative number of its host."""

COLUMNS = f"message.id, time, key, payload, {SENDER_UID}, gid, pid, origin, expires, gap, crc, account"

SIZE = f"LENGTH(key) + LENGTH(payload) + {MESSAGE_BYTES}"

WIDTH = 12
"""Number of COLUMNS: what a statement selects in addition follows."""


class Removable(NamedTuple):
    """What must be known about a message to remove it: ``SELECT id, account, <SIZE>, gap, key``."""

    id: int
    account: int
    size: int
    gap: int | None
    key: bytes


REMOVABLE = f"message.id, account, {SIZE}, gap, key"


def size_of(key: bytes, payload: bytes) -> int:
    """Return what a message with this key and payload counts, in bytes."""
    return len(key) + len(payload) + MESSAGE_BYTES


def message_of(row: tuple[Any, ...]) -> Stored:
    """Return the message in *row*, which has COLUMNS."""
    sender = Sender(max(row[4], NO_UID), row[5], row[6], row[7] or "")
    return Stored(seq_of(row[0]), row[1], row[2], row[3], sender, row[8] or 0)


def item_of(row: tuple[Any, ...]) -> Stored | Gap:
    """Return the message or gap in *row*, which has COLUMNS."""
    if row[9] is None:
        return message_of(row)
    return Gap(seq_of(row[0]), row[1], row[2], row[9], row[3].decode("utf-8", "replace"))
