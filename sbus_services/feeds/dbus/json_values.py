"""Values of D-Bus in JSON. Spec: sbus-feed(8), PAYLOADS; the D-Bus specification, "Type System".

The mapping, together with the signature, keeps all that a program needs to decode the value again:

- numbers and booleans are those of JSON; strings, paths, signatures, NaN and the infinities are strings;
- an array of bytes is a string in base64, any other array or a structure a list;
- a dictionary is an object; keys that are not strings are written as in JSON;
- a variant is an object with its signature, ``type``, and its value, ``data``.
"""

from __future__ import annotations

import base64
import math
from typing import Any

from sbus_services.feeds.netlink.entries import Json


class TooLargeError(ValueError):
    """The values need more room than a message has."""


class JsonValues:
    """Converts values until they take about *room* bytes of JSON: a signal can have millions of them."""

    def __init__(self, room: int) -> None:
        self._room = room

    def of(self, value: Any) -> Json:
        """Return *value*, as dbus-fast decodes it, in JSON. Raises TooLargeError, TypeError for anything that is not a value of D-Bus."""
        match value:
            case list() | tuple():
                self._use(2)
                return [self.of(each) for each in value]
            case dict():
                self._use(2)
                return {self._key(key): self.of(each) for key, each in value.items()}
            case bytes() | bytearray():
                self._use(len(value) * 4 // 3)
                return base64.b64encode(value).decode()
        if hasattr(value, "signature") and hasattr(value, "value"):
            self._use(20)
            return {"type": str(value.signature), "data": self.of(value.value)}
        text = basic_text(value)
        self._use(len(text) + 2)
        is_plain = isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
        return value if is_plain else text

    def _key(self, key: object) -> str:
        """Return the key of a member for the key of a dictionary."""
        text = key if isinstance(key, str) else basic_text(key)
        self._use(len(text) + 4)
        return text

    def _use(self, size: int) -> None:
        """Count *size* bytes and a separator. Raises TooLargeError."""
        self._room -= size + 1
        if self._room < 0:
            raise TooLargeError


def basic_text(value: object) -> str:
    """Return a number, boolean or string as text. Raises TypeError for other values."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return number_text(value)
    raise TypeError(f"not a basic value of D-Bus: {type(value).__name__}")


def number_text(value: float) -> str:
    """Return a floating-point number as text, with the names of JavaScript for those that JSON does not have."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)
