"""``sbusctl sub``: prints received messages."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from sbusd.client import Gap, Message, Reconnected, Replaced
from sbusd.ctl.following import follow
from sbusd.ctl.formats import DEFAULT_FORMAT, BadFormatError, Piece, Received, compile_format, gap_json, json_piece, raw_piece
from sbusd.ctl.output import JsonStyle, encode, flush, is_terminal, json_text, print_error, write_bytes
from sbusd.ctl.quantities import human_plural
from sbusd.ctl.settings import settings_of
from sbusd.protocol.errors import SbusError

Item = Message | Gap | Replaced | Reconnected


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

    def write(self, item: Item) -> None:
        """Write a message to standard output, a loss notice to standard error, and with JSON also to standard output."""
        if isinstance(item, Message):
            write_bytes(self.piece(Received(item.key, item.payload, self.wall())) + self.end)
            self.printed += 1
        elif isinstance(item, Gap):
            words = f"lost {human_plural(item.lost, 'message')}: this subscriber reads too slowly"
            self._note(gap_json(item.lost, self.wall()), words if item.lost else "messages may be lost: the bus was killed")
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


def command(
    context: typer.Context,
    *,
    patterns: Annotated[
        list[str], typer.Argument(metavar="PATTERN", help="Pattern to match keys; '' matches every key that is not reserved.")
    ],
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="COUNT", help="Exit after this many messages.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="Exit after this time.")] = None,
    template: Annotated[
        str | None, typer.Option("--format", "-F", metavar="FORMAT", help=r"Output format of a message. Default: %k\t%p.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print payloads only, unescaped even on a terminal.")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="Keep only the newest queued message of each key.")] = False,
    null: Annotated[bool, typer.Option("--null", "-0", help="Terminate messages with NUL, not with newline.")] = False,
) -> None:
    """Subscribe to patterns, and print each message."""
    settings = settings_of(context)
    if raw + (template is not None) + (settings.json is not JsonStyle.OFF) > 1:
        raise typer.BadParameter("--raw, --format and --json are mutually exclusive")
    printer = MessagePrinter(_piece(template, settings.json, raw=raw), b"\0" if null else b"\n", settings.json)
    deadline = None if timeout is None else time.monotonic() + timeout
    with settings.connect() as bus:
        if latest:
            bus.tell(b"order/latest")
        with bus.subscribe(*(os.fsencode(pattern) for pattern in patterns)) as subscription:
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
