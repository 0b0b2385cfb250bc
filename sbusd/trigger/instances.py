"""Names of units for messages: the instance of a template is a part of the message, escaped. Spec: systemd-escape(1)."""

from __future__ import annotations

import time
from itertools import count

from sbusd.config.trigger import MAX_UNIT_BYTES, TriggerRule

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:_.")

_numbers = count(1)


class UnitNameError(ValueError):
    """The message has no valid instance."""


def escaped(text: bytes) -> str:
    r"""Return *text* as systemd-escape(1) does: ``/`` becomes ``-``, other bytes outside of ``[A-Za-z0-9:_.]`` become ``\xNN``.

    A ``.`` at the beginning is escaped too, so the result is neither ``..`` nor the name of a hidden file.
    """
    parts = ["-" if byte == 0x2F else chr(byte) if byte in _PLAIN else f"\\x{byte:02x}" for byte in text]
    if text.startswith(b"."):
        parts[0] = "\\x2e"
    return "".join(parts)


def unit_of(rule: TriggerRule, key: bytes) -> str:
    """Return the unit of *rule* for a message with *key*.

    Raises:
        UnitNameError: the key has no such segment, or the name would be longer than systemd allows.
    """
    if not rule.is_template:
        return rule.unit
    prefix, _, suffix = rule.unit.partition("@.")
    name = f"{prefix}@{_instance(rule, key)}.{suffix}"
    if len(name) > MAX_UNIT_BYTES:
        raise UnitNameError(f"the name of the unit would have {len(name)} bytes, at most {MAX_UNIT_BYTES} are allowed")
    return name


def _instance(rule: TriggerRule, key: bytes) -> str:
    """Return the instance, which is not empty. Raises UnitNameError."""
    if rule.instance == "message":
        # Unique over restarts of the trigger too.
        return f"{time.time_ns():x}.{next(_numbers)}"
    if isinstance(rule.instance, int):
        segments = key.split(b"/")
        key = segments[rule.instance - 1] if rule.instance <= len(segments) else b""
    if not key:
        raise UnitNameError(f"the key has no text in segment {rule.instance}" if isinstance(rule.instance, int) else "the key is empty")
    return escaped(key)
