"""Makes the key of a signal from a template such as ``dbus/upower/{object}/{member}``. Spec: sbus-feed(8), KEYS.

A value never adds a segment, is never empty, and is never longer than :data:`MAX_PART_BYTES`: the sender chooses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from sbusd.config.feed_dbus import KEY_FIELD
from sbusd.feeds.dbus.connection import DBusSignal
from sbusd.feeds.dbus.json_values import basic_text
from sbusd.feeds.netlink.entries import escape

MAX_PART_BYTES = 255
"""Longest part of a key that a value becomes."""

_DIGEST_CHARACTERS = 32
"""Characters of the digest that ends a longer value: 128 bits, so that a sender cannot find two values with one key."""

EMPTY = "-"
"""The part of a key for an empty, missing or compound value; the text ``-`` becomes ``%2D``."""


def key_part(value: Any) -> str:
    """Return a value as one segment of a key."""
    try:
        text = basic_text(value)
    except TypeError:
        return EMPTY
    if text == EMPTY:
        return "%2D"
    escaped = escape(text)
    if len(escaped) > MAX_PART_BYTES:
        head = escaped[: MAX_PART_BYTES - _DIGEST_CHARACTERS - 1]
        # No half of an escaped byte.
        head = head[: head.rfind("%")] if "%" in head[-2:] else head
        return f"{head}~{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"
    return escaped or EMPTY


def key_maker(template: str) -> Callable[[str, DBusSignal], str]:
    """Return a function that makes the key of a signal of the sender with a well-known name."""
    pieces = KEY_FIELD.split(template)

    def key(sender: str, signal: DBusSignal) -> str:
        # Every second piece is the name of a field.
        return "".join(key_part(_field(piece, sender, signal)) if number % 2 else piece for number, piece in enumerate(pieces))

    return key


def _field(name: str, sender: str, signal: DBusSignal) -> Any:
    """Return the value of a field; None for an argument that is missing."""
    match name:
        case "sender":
            return sender
        case "path":
            return signal.path
        case "object":
            return signal.path.rpartition("/")[2]
        case "interface":
            return signal.interface
        case "member":
            return signal.member
    return _argument(signal.body, int(name.removeprefix("arg")))


def _argument(body: Sequence[Any], number: int) -> Any:
    """Return the argument with this number, or in a variant; None if it is missing."""
    value = body[number] if number < len(body) else None
    return getattr(value, "value", value)
