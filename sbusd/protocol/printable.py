"""Text from strangers, made safe to print: on one line, without anything that a terminal or a log would act upon."""

from __future__ import annotations


def printable(text: bytes | str, limit: int = 512) -> str:
    r"""Return *text* with every byte and character that does not print escaped as in Python, and a backslash doubled.

    Bytes are read as UTF-8; those that are not are shown as ``\xNN``. What is longer than *limit* characters is cut, and ends
    with ``…``, so that no stranger decides how long a line is.
    """
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogateescape") if text.isascii() or _is_encodable(text) else text.encode("utf-8", "surrogatepass")
    # A character is at most four bytes: cut before the work, so that a long text costs no more than a short one.
    shown = text[: 4 * limit].decode("utf-8", "surrogateescape")
    cut = len(text) > 4 * limit or len(shown) > limit
    return "".join(_escaped(character) for character in shown[:limit]) + ("…" if cut else "")


def _is_encodable(text: str) -> bool:
    """Return whether *text* has no surrogates but those that stand for single bytes, as file names do."""
    return not any("\ud800" <= character < "\udc80" or "\udcff" < character <= "\udfff" for character in text)


def _escaped(character: str) -> str:
    """Return one character as it is printed."""
    if character == "\\":
        return r"\\"
    if character.isprintable():
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
