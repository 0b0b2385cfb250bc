r"""Keys as text for string columns: UTF-8 is unchanged, other bytes become ``\xNN``, and a backslash is doubled.

A key is any bytes without NUL, but a string column holds UTF-8 only. The conversion is exact, and different keys have different texts.
"""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(\\|x[0-9a-f]{2})")
_STRAY = re.compile(r"[\udc80-\udcff]")


def key_text(key: bytes) -> str:
    """Return *key*, or a pattern, as text of the record."""
    if b"\\" in key:
        key = key.replace(b"\\", b"\\\\")
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError:
        return _STRAY.sub(lambda stray: f"\\x{ord(stray[0]) - 0xDC00:02x}", key.decode("utf-8", "surrogateescape"))


def key_bytes(text: str) -> bytes:
    """Return the key whose :func:`key_text` is *text*.

    Raises:
        ValueError: *text* has a backslash that does not begin an escape sequence.
    """
    if "\\" not in text:
        return text.encode("utf-8")
    if "\\" in _ESCAPE.sub("", text):
        raise ValueError(f"invalid key {text!r}: write a backslash as \\\\ and a byte that is not UTF-8 as \\xNN")
    pieces = (_unescaped(piece) for piece in re.split(r"(\\\\|\\x[0-9a-f]{2})", text))
    return b"".join(pieces)


def _unescaped(piece: str) -> bytes:
    """Return one escape sequence, or text without any, as bytes."""
    if piece == r"\\":
        return b"\\"
    return bytes.fromhex(piece[2:]) if piece.startswith(r"\x") else piece.encode("utf-8")
