"""``sbusctl trace``: shows the connections that would receive a message, and why others would not."""

from __future__ import annotations

import os
import shutil
from typing import Annotated

import typer

from sbusd.ctl.output import JsonStyle, is_terminal, visible, write_json, write_page
from sbusd.ctl.processes import command_name, user_name
from sbusd.ctl.quantities import NOTHING, human_count, human_plural
from sbusd.ctl.responses import JsonObject, TraceEntry, text, trace, trace_entry
from sbusd.ctl.settings import settings_of
from sbusd.ctl.tables import Column, table_lines

_COLUMNS = (
    Column("ID", is_number=True),
    Column("PID", is_number=True),
    Column("USER"),
    Column("COMMAND"),
    Column("RECEIVES"),
    Column("WHEN-FULL"),
    Column("BLOCKS"),
    Column("REASON"),
)


def command(context: typer.Context, key: Annotated[str, typer.Argument(metavar="KEY", help="Key of the message.")]) -> None:
    """Show who would receive a message, who would not, and why.

    No message is published.
    """
    settings = settings_of(context)
    with settings.connect() as bus:
        pages = trace(bus, os.fsencode(key))
    if settings.json is not JsonStyle.OFF:
        write_json(pages.as_json(), settings.json)
        return
    found = [trace_entry(item, gets_it=True) for item in pages.items["recipients"]]
    found += [trace_entry(item, gets_it=False) for item in pages.items["others"]]
    width = shutil.get_terminal_size().columns if is_terminal() else None
    write_page(lines(pages.head, found, pages.hidden, legend=settings.legend, width=width), pager=settings.pager)


def lines(head: JsonObject, found: list[TraceEntry], hidden: int, *, legend: bool, width: int | None) -> list[str]:
    """Return the decision on the key, the table of *found*, and with a legend the numbers."""
    table = table_lines(_COLUMNS, [_row(each) for each in found], legend=legend, width=width)
    verdict = [_verdict(head)]
    if not legend:
        return verdict + table
    recipients = sum(each.gets_it for each in found)
    sums = (
        f"{human_plural(recipients, 'connection')} would receive it, {len(found) - recipients} would not, {hidden} of other users hidden."
    )
    return [*verdict, "", *table, "", sums]


def _verdict(head: JsonObject) -> str:
    """Return whether the key may be published to, and the reason."""
    key = visible(text(head, "key") or "")
    words = "not known whether it may be published"
    if isinstance(publishable := head.get("publishable"), bool):
        words = "may be published" if publishable else "may not be published"
    reason = visible(text(head, "reason") or "")
    return f"{key}: {words}: {reason}" if reason else f"{key}: {words}"


def _row(each: TraceEntry) -> list[str]:
    """Return the cells of one connection."""
    # The bus does not list the patterns of a connection that has very many.
    because = " ".join(pattern or "''" for pattern in each.patterns) or each.reason or NOTHING
    return [
        human_count(each.id),
        human_count(each.pid),
        user_name(each.uid),
        command_name(each.pid),
        "yes" if each.gets_it else "no",
        visible(each.when_full or NOTHING),
        each.blocks or NOTHING,
        because,
    ]
