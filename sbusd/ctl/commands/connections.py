"""``sbusctl connections``: lists connections."""

from __future__ import annotations

import shutil
import time

import typer

from sbusd.ctl.output import JsonStyle, is_terminal, write_json, write_page
from sbusd.ctl.processes import process_of, user_name
from sbusd.ctl.quantities import human_bytes, human_count, human_duration, human_plural
from sbusd.ctl.responses import ConnectionInfo, connection_info, connections
from sbusd.ctl.settings import settings_of
from sbusd.ctl.tables import Column, table_lines

_COLUMNS = (
    Column("ID", is_number=True),
    Column("PID", is_number=True),
    Column("USER"),
    Column("COMMAND"),
    Column("UNIT"),
    Column("AGE", is_number=True),
    Column("SUBS", is_number=True),
    Column("IN", is_number=True),
    Column("IN-BYTES", is_number=True),
    Column("OUT", is_number=True),
    Column("OUT-BYTES", is_number=True),
    Column("QUEUED", is_number=True),
    Column("QUEUED-BYTES", is_number=True),
    Column("LOST", is_number=True),
    Column("REFUSED", is_number=True),
)


def command(context: typer.Context) -> None:
    """List connections and their counters.

    Owners, and users with the right presence or tap, see all connections; other users see their own.
    """
    settings = settings_of(context)
    with settings.connect() as bus:
        pages = connections(bus)
    if settings.json is not JsonStyle.OFF:
        write_json(pages.as_json(), settings.json)
        return
    found = [connection_info(item) for item in pages.items["connections"]]
    width = shutil.get_terminal_size().columns if is_terminal() else None
    write_page(lines(found, pages.hidden, now=time.time(), legend=settings.legend, width=width), pager=settings.pager)


def lines(found: list[ConnectionInfo], hidden: int, *, now: float, legend: bool, width: int | None) -> list[str]:
    """Return the table of *found*, with a legend also the numbers of listed and hidden ones. *now* is in seconds since 1970."""
    table = table_lines(_COLUMNS, [_row(each, now) for each in found], legend=legend, width=width)
    if legend:
        table += ["", f"{human_plural(len(found), 'connection')} listed, {hidden} of other users hidden."]
    return table


def _row(each: ConnectionInfo, now: float) -> list[str]:
    """Return the cells of one connection."""
    process = process_of(each.pid, each.since)
    return [
        human_count(each.id),
        human_count(each.pid),
        user_name(each.uid),
        process.command,
        process.unit,
        human_duration(None if each.since is None else now - each.since),
        human_count(each.subscriptions),
        human_count(each.received_packets),
        human_bytes(each.received_bytes),
        human_count(each.delivered_packets),
        human_bytes(each.delivered_bytes),
        human_count(each.queued_packets),
        human_bytes(each.queued_bytes),
        human_count(each.lost_packets),
        human_count(each.refused_packets),
    ]
