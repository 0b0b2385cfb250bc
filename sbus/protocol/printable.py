"""Makes untrusted text safe to print: on one line, without characters that a terminal or a log would interpret."""

from __future__ import annotations

LINE_CHARACTERS = 8_192
"""Maximum length of an error line of a program, with room for two paths: the reason and the advice are at its end."""


def printable(text: bytes | str, limit: int = 512) -> str:
    r"""Return *text* with every unprintable byte and character escaped as in Python, and each backslash doubled.

    Bytes are decoded as UTF-8; invalid ones are shown as ``\xNN``. Text longer than *limit* characters is truncated, and ends with
    ``…``, so that the sender does not control the length of a line.
    """
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogateescape") if text.isascii() or _is_encodable(text) else text.encode("utf-8", "surrogatepass")
    # A character has at most four bytes: truncate first, so that a long text costs no more than a short one.
    shown = text[: 4 * limit].decode("utf-8", "surrogateescape")
    cut = len(text) > 4 * limit or len(shown) > limit
    return "".join(_escaped(character) for character in shown[:limit]) + ("…" if cut else "")


def _is_encodable(text: str) -> bool:
    """Return whether *text* has no surrogates except those that represent single bytes, as in file names."""
    return not any("\ud800" <= character < "\udc80" or "\udcff" < character <= "\udfff" for character in text)


def _escaped(character: str) -> str:
    """Return the printable form of one character."""
    if character == "\\":
        return r"\\"
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
