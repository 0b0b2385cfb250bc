r"""``sbusctl sub``: prints received messages.

``--format`` has these sequences:

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
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sbus import BlobGone, BlobMessage, Gap, Message, Reconnected, Replaced
from sbus.protocol.errors import SbusError
from sbusctl.blob_files import BlobFolder
from sbusctl.errors import print_error
from sbusctl.formatting import human_plural, local_time
from sbusctl.output import JsonStyle, encode, flush, follow, is_terminal, json_text, text_or_base64, visible, write_bytes
from sbusctl.settings import MAX_SECONDS, settings_of

Item = Message | Gap | Replaced | Reconnected

DEFAULT_FORMAT = r"%k\t%p"

_ESCAPES = {"n": b"\n", "t": b"\t", "0": b"\0", "\\": b"\\"}


class TooFewError(SbusError):
    """The timeout expired before the requested number of messages was received."""

    def __init__(self, received: int, wanted: int, seconds: float) -> None:
        super().__init__(f"timed out after {seconds:g} s: received {received} of {human_plural(wanted, 'message')}")


@dataclass(slots=True)
class MessagePrinter:
    """Prints the items of a subscription. ``wall`` returns the time, in seconds since 1970."""

    piece: Piece
    end: bytes
    json: JsonStyle
    wall: Callable[[], float] = time.time
    printed: int = 0
    folder: BlobFolder | None = None
    """Where blobs are written; their paths are printed as payloads."""

    def write(self, item: Item) -> None:
        """Write a message to standard output, a loss notice to standard error, and with JSON also to standard output."""
        if isinstance(item, BlobMessage) and self.folder is not None:
            path = self.folder.save(item)
            write_bytes(self.piece(Received(item.key_bytes, os.fsencode(path), self.wall())) + self.end)
            self.printed += 1
        elif isinstance(item, Message):
            write_bytes(self.piece(Received(item.key_bytes, item.payload, self.wall())) + self.end)
            self.printed += 1
        elif isinstance(item, BlobGone):
            key = visible(item.message.key)
            self._note(gap_json(item.lost, self.wall()), f"lost the blob of a message with key {key}: {item.reason}")
        elif isinstance(item, Gap):
            words = f"lost {human_plural(item.lost, 'message')}: this subscriber reads too slowly" if item.lost else "messages may be lost"
            cause = "" if item.lost else ": the bus was killed"
            self._note(gap_json(item.lost, self.wall()), f"{words}{cause}, or another host was not reached")
        elif isinstance(item, Replaced):
            news: dict[str, object] = {"type": "replaced", "replaced": item.count, "time": self.wall()}
            self._note(news, f"replaced {human_plural(item.count, 'message')} by newer messages with the same keys")
        else:
            self._note({"type": "reconnected", "time": self.wall()}, "reconnected: messages published in the meantime are lost")

    def _note(self, news: dict[str, object], words: str) -> None:
        """Print *words*, in order with the messages."""
        if self.json is not JsonStyle.OFF:
            write_bytes(json_text(news, self.json).encode("ascii") + self.end)
        flush()
        print_error(words)


def sub_command(
    context: typer.Context,
    *,
    patterns: Annotated[
        list[str], typer.Argument(metavar="PATTERN", help="Pattern to match keys; '' matches every key that is not reserved.")
    ],
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="COUNT", help="Exit after this many messages.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, max=MAX_SECONDS, metavar="SECONDS", help="Exit after this time.")
    ] = None,
    template: Annotated[
        str | None, typer.Option("--format", "-F", metavar="FORMAT", help=r"Output format of a message. Default: %k\t%p.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print payloads only, unchanged and unescaped, even on a terminal.")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="Keep only the newest queued message of each key.")] = False,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Be a member of this queue group: one member gets each message.")
    ] = None,
    blobs: Annotated[
        Path | None, typer.Option("--blobs", metavar="DIR", help="Write each blob into a file in DIR, and print its path as the payload.")
    ] = None,
    reconnect: Annotated[bool, typer.Option("--reconnect", help="Connect again if the bus ends the connection.")] = False,
    null: Annotated[bool, typer.Option("--null", "-0", help="Terminate messages with NUL, not with newline.")] = False,
) -> None:
    """Subscribe to patterns, and print each message."""
    settings = settings_of(context)
    if raw + (template is not None) + (settings.json is not JsonStyle.OFF) > 1:
        raise typer.BadParameter("--raw, --format and --json are mutually exclusive")
    end = b"\0" if null else b"" if raw else b"\n"
    if blobs is not None and not blobs.is_dir():
        raise typer.BadParameter(f"{visible(str(blobs))} is not a directory", param_hint="--blobs")
    folder = None if blobs is None else BlobFolder(blobs)
    printer = MessagePrinter(_piece(template, settings.json, raw=raw), end, settings.json, folder=folder)
    deadline = None if timeout is None else time.monotonic() + timeout
    with settings.connect(reconnect=reconnect) as bus:
        if latest:
            bus.tell(b"order/latest")
        names = [os.fsencode(pattern) for pattern in patterns]
        with bus.subscribe(*names, group=None if group is None else os.fsencode(group), blobs=blobs is not None) as subscription:
            try:
                follow(subscription.receive, printer, count, deadline)
            finally:
                flush()
    if count is not None and timeout is not None and printer.printed < count:
        raise TooFewError(printer.printed, count, timeout)


def _piece(template: str | None, json: JsonStyle, *, raw: bool) -> Piece:
    """Return a function that formats messages. Raises BadParameter if *template* is invalid."""
    if raw:
        return raw_piece()
    if json is not JsonStyle.OFF:
        return json_piece(json)
    try:
        return compile_format(DEFAULT_FORMAT if template is None else template, encode, is_terminal=is_terminal())
    except BadFormatError as error:
        raise typer.BadParameter(str(error), param_hint="--format") from None


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
            *known, last = (name for name in (directives if character == "%" else _ESCAPES) if name != character)
            noun = "percent sign" if character == "%" else "backslash"
            raise BadFormatError(
                f"{character} at character {position} is not followed by {', '.join(known)} or {last}; write {character * 2} for a {noun}"
            )
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
