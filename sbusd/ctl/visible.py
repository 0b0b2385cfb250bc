"""Text that is safe to show, whole: other users choose keys, payloads and process names, and a terminal obeys control characters."""

from __future__ import annotations


def visible(value: bytes | str) -> str:
    r"""Return *value* as one line in which every character is visible.

    What is not UTF-8, a control or format character (C0, C1, bidirectional marks), or a line break becomes a backslash escape
    such as ``\n``, ``\x1b``, ``\u202e``. Unlike :func:`sbusd.protocol.printable.printable` it cuts nothing and leaves a backslash
    as it is, so that JSON in a payload stays readable and escaped text stays the same; ``--json`` is exact.
    """
    text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def _escaped(character: str) -> str:
    """Return the backslash escape of one character; a surrogate stands for a byte that is not UTF-8."""
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
