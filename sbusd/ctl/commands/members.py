"""``sbusctl members``: lists the subscribers that would receive a message."""

from __future__ import annotations

import os
import shutil
import time
from typing import Annotated

import typer

from sbusd.client import Peer
from sbusd.ctl.commands.call import peer_json
from sbusd.ctl.output import JsonStyle, is_terminal, write_json, write_page
from sbusd.ctl.processes import Process, process_of, user_name
from sbusd.ctl.quantities import human_count, human_plural
from sbusd.ctl.settings import settings_of
from sbusd.ctl.tables import Column, table_lines

_COLUMNS = (Column("ID", is_number=True), Column("PID", is_number=True), Column("USER"), Column("COMMAND"), Column("UNIT"))


def command(context: typer.Context, *, key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the message.")]) -> None:
    """List the subscribers that would receive a message with a key."""
    settings = settings_of(context)
    with settings.connect() as bus:
        peers = bus.members(os.fsencode(key))
    found = [(peer, process_of(peer.pid, time.time())) for peer in peers]
    if settings.json is not JsonStyle.OFF:
        write_json({"members": [member_json(peer, process) for peer, process in found]}, settings.json)
        return
    width = shutil.get_terminal_size().columns if is_terminal() else None
    write_page(lines(found, legend=settings.legend, width=width), pager=settings.pager)


def lines(found: list[tuple[Peer, Process]], *, legend: bool, width: int | None) -> list[str]:
    """Return the table of *found*, with a legend also their number."""
    rows = [
        [human_count(peer.connection), human_count(peer.pid), user_name(peer.uid), process.command, process.unit] for peer, process in found
    ]
    table = table_lines(_COLUMNS, rows, legend=legend, width=width)
    return [*table, "", f"{human_plural(len(found), 'member')} listed."] if legend else table


def member_json(peer: Peer, process: Process) -> dict[str, object]:
    """Return one member: credentials verified by the bus, command and unit as seen by the kernel."""
    return {**peer_json(peer), "command": process.command, "unit": process.unit}
