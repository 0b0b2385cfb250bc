"""``sbusctl blob``: gets, lists and drops blobs, and shows what the user has used. Spec: sbus-blob(8)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from sbus.blobs import blob_of, get_request
from sbus.bus_documents import JsonObject
from sbus.sync.blob_socket import BlobSocket
from sbusctl.blob_files import write_file
from sbusctl.formatting import NOTHING, Column, human_bytes, human_duration, human_plural, table_lines
from sbusctl.output import JsonStyle, flush, is_terminal, terminal_width, visible, write_bytes, write_json, write_page
from sbusctl.responses import integer, mapping, number, objects, text
from sbusctl.settings import TIMEOUT_SECONDS, Settings, forbid_json, settings_of

_COLUMNS = (
    Column("TICKET"),
    Column("KIND", rank=2),
    Column("SIZE", is_number=True),
    Column("TYPE", rank=1),
    Column("FOR"),
    Column("USES", is_number=True, rank=3),
    Column("EXPIRES", is_number=True),
)

_CHUNK_BYTES = 1 << 20


TicketArgument = Annotated[str, typer.Argument(metavar="TICKET", help="Ticket of the blob.")]


def get_action(
    context: typer.Context,
    *,
    ticket: TicketArgument,
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="The host in the reference to the blob.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the blob into this file.")] = None,
) -> None:
    """Write a blob to standard output, or into a file."""
    forbid_json(context, "blob get")
    if output is None and is_terminal():
        raise typer.BadParameter("standard output is a terminal; redirect it, or use --output")
    service = _service(settings_of(context))
    blob = blob_of((service.remote if host else service).exchange(get_request(ticket, host)), service.address)
    _write(blob.data, output)


def list_action(context: typer.Context) -> None:
    """List the blobs of this user."""
    settings = settings_of(context)
    blobs = list(list_blobs(_service(settings)))
    if settings.json is JsonStyle.OFF:
        write_page(lines(blobs, legend=settings.legend, width=terminal_width()), pager=settings.pager)
    else:
        write_json({"blobs": blobs}, settings.json)


def drop_action(context: typer.Context, *, ticket: TicketArgument) -> None:
    """Delete a blob of this user."""
    forbid_json(context, "blob drop")
    _service(settings_of(context)).exchange({"request": "drop", "ticket": ticket}).close()


def stats_action(context: typer.Context) -> None:
    """Print the usage and the quotas of this user."""
    settings = settings_of(context)
    stats = _service(settings).exchange({"request": "stats"}).members
    if settings.json is JsonStyle.OFF:
        write_page(stats_lines(stats), pager=settings.pager)
    else:
        write_json(stats, settings.json)


def _service(settings: Settings) -> BlobSocket:
    """Return the socket of the blob service."""
    return BlobSocket(settings.bus_address(), TIMEOUT_SECONDS)


def list_blobs(service: BlobSocket) -> Iterator[JsonObject]:
    """Yield the blobs of this user. Raises what an exchange raises."""
    after: str | None = None
    while True:
        page = service.exchange({"request": "list"} if after is None else {"request": "list", "after": after}).members
        yield from objects(page, "blobs")
        following = text(page, "next")
        if following is None or (after is not None and following <= after):
            return
        after = following


def lines(blobs: list[JsonObject], *, legend: bool, width: int | None) -> list[str]:
    """Return *blobs* as a table."""
    table = table_lines(_COLUMNS, [_row(blob) for blob in blobs], legend=legend, width=width) if blobs else []
    return [*table, *(["", f"{human_plural(len(blobs), 'blob')}."] if legend else [])]


def stats_lines(stats: JsonObject) -> list[str]:
    """Return the usage of a user, with its limits and counters, as text."""
    usage, limits, counters = mapping(stats, "usage"), mapping(stats, "limits"), mapping(stats, "counters")
    pairs = [(name, f"{integer(usage, name) or 0} of {integer(limits, name)}") for name in usage]
    pairs += [(name, str(integer(counters, name) or 0)) for name in sorted(counters)]
    indent = max((len(name) for name, _ in pairs), default=0)
    return [f"{visible(name.ljust(indent))}  {value}" for name, value in pairs]


def _row(blob: JsonObject) -> list[str]:
    """Return the cells of one blob."""
    uses = integer(blob, "uses")
    return [
        visible(text(blob, "ticket") or NOTHING),
        visible(text(blob, "kind") or NOTHING),
        human_bytes(integer(blob, "size")),
        visible(text(blob, "type") or NOTHING),
        visible(text(blob, "for") or NOTHING),
        NOTHING if uses is None else str(uses),
        human_duration(number(blob, "expire")),
    ]


def _write(data: memoryview, output: Path | None) -> None:
    """Write *data* into a file, or to standard output. Raises OSError."""
    if output is not None:
        write_file(output, data)
        return
    for start in range(0, len(data), _CHUNK_BYTES):
        write_bytes(bytes(data[start : start + _CHUNK_BYTES]))
        flush()
    sys.stdout.flush()
