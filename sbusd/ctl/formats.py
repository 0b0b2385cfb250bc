r"""How ``sbusctl sub`` writes a message: ``--format``, ``--json``, ``--raw``.

=======  =====================================================================
``%k``   the key, made printable
``%p``   the payload, made printable: one message is always one line
``%r``   the payload's bytes; on a terminal the same as ``%p``
``%b``   the payload in base64
``%x``   the payload in hex
``%l``   the payload's length in bytes
``%t``   local arrival time, RFC 3339 with microseconds
``%U``   the same, seconds since 1970
``%j``   the message as with ``--json=short``
``%%``   a percent sign
=======  =====================================================================

``\n``, ``\t``, ``\0`` and ``\\`` have the meaning of printf(1).
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from sbusd.ctl.output import JsonStyle, json_text, visible

DEFAULT_FORMAT = r"%k\t%p"

_ESCAPES = {"n": b"\n", "t": b"\t", "0": b"\0", "\\": b"\\"}


@dataclass(frozen=True, slots=True)
class Received:
    """A message and its arrival time, in seconds since 1970."""

    key: bytes
    payload: bytes
    time: float


Piece = Callable[[Received], bytes]
"""Writes one part of a message."""


class BadFormatError(ValueError):
    """An invalid ``--format``."""


def compile_format(text: str, encode: Callable[[str], bytes], *, is_terminal: bool) -> Piece:
    """Return a function that formats messages as *text* says; *encode* is that of standard output.

    Raises:
        BadFormatError: a ``%`` or a backslash is followed by an unknown character.
    """
    directives = _directives(encode, is_terminal=is_terminal)
    pieces: list[Piece] = []
    rest = iter(enumerate(text, 1))
    for position, character in rest:
        if character not in "%\\":
            pieces.append(_constant(encode(character)))
            continue
        _, following = next(rest, (0, ""))
        if character == "\\" and following in _ESCAPES:
            pieces.append(_constant(_ESCAPES[following]))
        elif character == "%" and following in directives:
            pieces.append(directives[following])
        else:
            known = " ".join(f"%{name}" for name in directives) if character == "%" else " ".join(f"\\{name}" for name in _ESCAPES)
            raise BadFormatError(f"unknown sequence {character}{visible(following)} at character {position}: use {known}")
    return lambda message: b"".join(piece(message) for piece in pieces)


def json_piece(style: JsonStyle) -> Piece:
    """Return a function that formats a message as JSON: ``key`` and ``payload``, or in base64 where they are not UTF-8."""
    return lambda message: json_text(message_json(message), style).encode("ascii")


def raw_piece() -> Piece:
    """Return a function that returns the payload of a message."""
    return lambda message: message.payload


def message_json(message: Received) -> dict[str, object]:
    """Return a message as a JSON object."""
    return {"type": "message", "time": message.time, **text_or_base64("key", message.key), **text_or_base64("payload", message.payload)}


def gap_json(lost: int, time: float) -> dict[str, object]:
    """Return a loss notice of *lost* messages as a JSON object."""
    return {"type": "gap", "time": time, "lost": lost}


def _directives(encode: Callable[[str], bytes], *, is_terminal: bool) -> dict[str, Piece]:
    """Return the function for each ``%`` sequence."""

    def safe_payload(message: Received) -> bytes:
        return encode(visible(message.payload))

    return {
        "k": lambda message: encode(visible(message.key)),
        "p": safe_payload,
        "r": safe_payload if is_terminal else raw_piece(),
        "b": lambda message: base64.b64encode(message.payload),
        "x": lambda message: message.payload.hex().encode("ascii"),
        "l": lambda message: b"%d" % len(message.payload),
        "t": lambda message: local_time(message.time).encode("ascii"),
        "U": lambda message: f"{message.time:.6f}".encode("ascii"),
        "j": json_piece(JsonStyle.SHORT),
        "%": _constant(b"%"),
    }


def _constant(text: bytes) -> Piece:
    """Return a function that returns *text*."""
    return lambda _: text


def local_time(time: float) -> str:
    """Return RFC 3339 with microseconds and the local offset."""
    return datetime.fromtimestamp(time, UTC).astimezone().isoformat(timespec="microseconds")


def text_or_base64(name: str, value: bytes) -> dict[str, str]:
    """Return *value* under *name*, or in base64 under ``<name>_base64`` if it is not UTF-8."""
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}
