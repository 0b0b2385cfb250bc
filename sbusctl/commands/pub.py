"""``sbusctl pub``: publishes a message, or each line of standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, BinaryIO, Protocol

import typer

from sbus import PayloadTooLarge, RemoteRefusal
from sbus.protocol.blobs import DEFAULT_EXPIRE, DEFAULT_TYPE, MAX_EXPIRE
from sbus.protocol.direct_messages import MAX_NUMBER_DIGITS
from sbus.protocol.errors import ProtocolError, SbusError
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbusctl.errors import NO_RECIPIENT, error_text
from sbusctl.formatting import human_plural
from sbusctl.keys import one_key
from sbusctl.output import JsonStyle, write_json, write_lines
from sbusctl.payloads import BLOB_ADVICE, InputError, InputTooLongError, one_payload, reading
from sbusctl.settings import forbid_json, settings_of

_CHUNK_BYTES = 65_536

_LAST_NUMBER = 10**MAX_NUMBER_DIGITS - 1


class Publisher(Protocol):
    """The part of a bus that publishes."""

    def publish(self, key: bytes, payload: bytes, *, to: int | None = None) -> None:
        """Publish a message, with *to* to that connection alone."""

    def coalesce(self) -> AbstractContextManager[None]:
        """Send messages in one packet until the end of the block."""

    def ping(self) -> float:
        """Wait until the bus has routed everything that was sent."""


class MessageError(SbusError):
    """Message *number* of many could not be published; those before it were."""

    def __init__(self, number: int, error: Exception) -> None:
        before = human_plural(number - 1, "message")
        super().__init__(f"cannot publish message {number} of standard input: {error_text(error)}; published {before} before it")


def pub_command(
    context: typer.Context,
    *,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key (topic) of the message.")],
    payload: Annotated[
        str | None,
        typer.Argument(metavar="PAYLOAD", help="Payload, by default empty. Use '-' to read standard input."),
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", "-l", help="Publish each line of standard input as a message.")] = False,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for slow recipients instead of discarding messages.")] = False,
    receipt: Annotated[bool, typer.Option("--receipt", help="Print the number of recipients; exit with 3 if there is none.")] = False,
    to: Annotated[int | None, typer.Option("--to", min=1, max=_LAST_NUMBER, metavar="ID", help="Publish to this connection alone.")] = None,
    null: Annotated[bool, typer.Option("--null", "-0", help="With --lines, messages end with NUL, not with newline.")] = False,
    blob: Annotated[Path | None, typer.Option("--blob", metavar="FILE", help="Publish this file as a blob; '-' is standard input.")] = None,
    kind: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="With --blob: media type of FILE, such as image/png.")] = None,
    expire: Annotated[
        float | None, typer.Option("--expire", min=0, max=MAX_EXPIRE, metavar="SECONDS", help="With --blob: how long the blob is kept.")
    ] = None,
) -> None:
    """Publish a message, and wait until the bus has routed it."""
    if not receipt:
        forbid_json(context, "pub without --receipt")
    if blob is not None:
        if payload is not None or lines or receipt or null or to is not None:
            raise typer.BadParameter("--blob publishes a file; omit PAYLOAD, --lines, --receipt, --to and --null")
        if blob == Path("-"):
            with reading():
                os.read(sys.stdin.fileno(), 0)  # errors of the client do not name it
        with settings_of(context).connect(pace=wait) as bus:
            # This process ends before subscribers have got the blob.
            ticket = bus.publish_blob(
                one_key(key),
                sys.stdin.buffer if blob == Path("-") else blob,
                type=kind or DEFAULT_TYPE,
                expire=DEFAULT_EXPIRE if expire is None else expire,
                keep=True,
            )
            try:
                bus.ping()
            except RemoteRefusal:
                # Nobody learns the ticket of a refused message.
                bus.drop_blob(ticket)
                raise
        return
    if kind is not None or expire is not None:
        raise typer.BadParameter("--type and --expire require --blob")
    if lines and payload not in (None, "-"):
        raise typer.BadParameter("--lines reads payloads from standard input; omit PAYLOAD")
    if receipt and lines:
        raise typer.BadParameter("--receipt is for a single message; omit it or --lines")
    if null and not lines:
        raise typer.BadParameter("--null requires --lines")
    source = sys.stdin.buffer
    name = one_key(key)
    if lines:
        with settings_of(context).connect(pace=wait) as bus:
            publish_lines(bus, name, read_records(source, b"\0" if null else b"\n"), to=to)
        return
    # Read first: the source of the payload may be slow, and the bus is not needed meanwhile.
    data = one_payload(payload, source, advice=BLOB_ADVICE)
    with settings_of(context).connect(pace=wait) as bus:
        if not receipt:
            bus.publish(name, data, to=to)
            bus.ping()
            return
        count = bus.publish(name, data, receipt=True, to=to)
    _print_receipt(count, settings_of(context).json)


def _print_receipt(count: int | None, style: JsonStyle) -> None:
    """Print the number of recipients, None if the bus does not disclose it. Raises typer.Exit if there is none."""
    if style is not JsonStyle.OFF:
        write_json({"recipients": count}, style)
    else:
        write_lines(["the bus does not disclose the number of recipients" if count is None else human_plural(count, "recipient")])
    if count == 0:
        raise typer.Exit(NO_RECIPIENT)


def publish_lines(bus: Publisher, key: bytes, groups: Iterable[Sequence[bytes]], *, to: int | None = None) -> None:
    """Publish each payload of *groups* under *key*, each group in one packet if it fits, and wait until all are routed.

    With *to*, only that connection can get them.

    Raises:
        MessageError: a payload is too large, or cannot be read; those before it have been routed.
        SbusError: the bus refused a message, or is gone.
    """
    count = 0
    try:
        for payloads in groups:
            with bus.coalesce():
                for payload in payloads:
                    bus.publish(key, payload, to=to)
                    count += 1
    except (ProtocolError, PayloadTooLarge, InputTooLongError, InputError) as error:
        bus.ping()
        raise MessageError(count + 1, error) from None
    bus.ping()


def read_records(source: BinaryIO, end: bytes) -> Iterator[list[bytes]]:
    """Yield the records of *source*, separated by *end*, in groups that are available together; the last one may have no *end*.

    Raises:
        InputTooLongError: a record is longer than the largest packet.
        InputError: *source* cannot be read.
    """
    # read1 returns what is available, so that a line of a slow program is published at once.
    pending = b""
    read1 = getattr(source, "read1", source.read)
    while True:
        with reading():
            chunk = read1(_CHUNK_BYTES)
        if not chunk:
            break
        *records, pending = (pending + chunk).split(end)
        yield records
        if len(pending) > MAX_PACKET_BYTES:
            raise InputTooLongError(BLOB_ADVICE)
    if pending:
        yield [pending]
