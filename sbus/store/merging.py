"""Puts last values before the messages that arrived while they were loaded, without values that are older. No I/O.

A value of the store and a message from the bus have no number in common. So a message with the same key and payload as the last value is
taken for the same one: it and the earlier messages of this key are omitted, because the last value is as new. Later ones stay. A message
that the store published after the last values were loaded comes once more; the last message of a key is always its newest value.
"""

from __future__ import annotations

from collections.abc import Sequence

from sbus.items import Item, Message


def merged(values: Sequence[Message], arrived: Sequence[Item]) -> list[Item]:
    """Return *values*, each key once, and what of *arrived* is newer."""
    last = {value.key_bytes: value for value in values}
    known: dict[bytes, int] = {}
    for place, item in enumerate(arrived):
        if isinstance(item, Message) and (value := last.get(item.key_bytes)) is not None and value.payload == item.payload:
            known[item.key_bytes] = place
    newer = [item for place, item in enumerate(arrived) if not isinstance(item, Message) or place > known.get(item.key_bytes, -1)]
    return [*values, *newer]
