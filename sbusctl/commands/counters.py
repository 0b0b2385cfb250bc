"""The counters of connections and of the bus: ``sbusctl connections`` and ``sbusctl stats``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from sbus.bus_documents import JsonObject
from sbus.protocol import controls
from sbus_programs.systemd.processes import process_of
from sbusctl.formatting import (
    NOTHING,
    Column,
    human_bytes,
    human_count,
    human_duration,
    human_plural,
    local_time,
    table_lines,
)
from sbusctl.output import JsonStyle, flush, terminal_width, visible, write_bytes, write_json, write_page
from sbusctl.processes import labelled, unit_shown, user_name
from sbusctl.responses import (
    ConnectionInfo,
    ask,
    connection_info,
    connections,
    integer,
    mapping,
    number,
    objects,
    waits_text,
)
from sbusctl.settings import Settings, settings_of

MAX_USERS = 100
"""Users with metrics of their own, as by default in sbus-metrics(8)."""

_SINCE = "counted_since"
"""Seconds since 1970 from which on the bus counts."""

_LATEST = 253_402_000_000.0
"""The end of the year 9999, the last that can be shown as a date."""

_COLUMNS = (
    Column("ID", is_number=True),
    Column("PID", is_number=True),
    Column("USER"),
    Column("COMMAND"),
    Column("UNIT", rank=7),
    Column("SLICE", rank=10),
    Column("AGE", is_number=True, rank=2),
    Column("SUBS", is_number=True, rank=1),
    Column("IN", is_number=True, rank=4),
    Column("IN-BYTES", is_number=True, rank=9),
    Column("OUT", is_number=True, rank=3),
    Column("OUT-BYTES", is_number=True, rank=8),
    Column("QUEUED", is_number=True),
    Column("QUEUED-BYTES", is_number=True, rank=6),
    Column("LOST", is_number=True),
    Column("REFUSED", is_number=True, rank=5),
)


def connections_command(context: typer.Context) -> None:
    """List connections and their counters.

    Owners, and users who have the presence or tap right, see all connections; other users see their own.
    """
    settings = settings_of(context)
    with settings.connect() as bus:
        pages = connections(bus)
    if settings.json is not JsonStyle.OFF:
        write_json(pages.as_json(), settings.json)
        return
    found = [connection_info(item) for item in pages.items["connections"]]
    width = terminal_width()
    write_page(connection_lines(found, pages.hidden, now=time.time(), legend=settings.legend, width=width), pager=settings.pager)


def connection_lines(found: list[ConnectionInfo], hidden: int, *, now: float, legend: bool, width: int | None) -> list[str]:
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
        labelled(process.command, each.name),
        unit_shown(each, process),
        visible(each.slice or NOTHING),
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


def stats_command(
    context: typer.Context,
    *,
    openmetrics: Annotated[
        bool, typer.Option("--openmetrics", help="Print the metrics of the bus and of its users in OpenMetrics.")
    ] = False,
    textfile: Annotated[
        Path | None, typer.Option("--textfile", metavar="FILE", help="Replace FILE by the metrics, for node_exporter; it ends with .prom.")
    ] = None,
) -> None:
    """Print the counters of the bus.

    Owners see the counters of the whole bus, other users those of this connection. The metrics are for owners, and for users with the
    right stats.
    """
    settings = settings_of(context)
    if openmetrics or textfile is not None:
        if settings.json is not JsonStyle.OFF or (openmetrics and textfile is not None):
            raise typer.BadParameter("--json, --openmetrics and --textfile are mutually exclusive")
        _write_metrics(settings, textfile)
        return
    with settings.connect() as bus:
        stats = ask(bus, controls.STATS)
    if settings.json is JsonStyle.OFF:
        write_page(stats_lines(stats, now=time.time(), legend=settings.legend), pager=settings.pager)
    else:
        write_json(stats, settings.json)


def _write_metrics(settings: Settings, textfile: Path | None) -> None:
    """Print the metrics, or replace *textfile* by them. Raises SbusError, OSError."""
    # Imported here: other calls do not need the library, which is optional.
    from sbus_programs.config.users import subordinate_ids  # noqa: PLC0415
    from sbus_services.metrics import exposition, families, snapshot  # noqa: PLC0415

    exposition.check_library()
    if textfile is not None:
        exposition.check_name(textfile)
    started = time.monotonic()
    with settings.connect() as bus:
        found = snapshot.ask(bus, MAX_USERS, subordinate_ids())
    labels = families.user_labels(found.chosen)
    made = families.bus_families(found, labels, time.monotonic() - started)
    if textfile is None:
        write_bytes(exposition.openmetrics(made))
        flush()
    else:
        exposition.replace(textfile, exposition.prometheus_text(made))


def stats_lines(stats: JsonObject, *, now: float, legend: bool) -> list[str]:
    """Return *stats* as lines of name and value; sections are groups, with a legend under their name. *now* is in seconds since 1970."""
    apart = ("scope", "uptime_seconds", "waits")
    plain = [(name, stats[name]) for name in stats if not isinstance(stats[name], dict) and name not in apart]
    uptime = number(stats, "uptime_seconds")
    named = [(name, _value(name, value, now)) for name, value in plain]
    if uptime is not None:
        named.append(("uptime", human_duration(uptime)))
    groups = [("", named)]
    for name in (name for name in stats if isinstance(stats[name], dict)):
        section = mapping(stats, name)
        groups.append((name, [(inner, _value(inner, section[inner], now)) for inner in section]))
    groups.append(("blocked publishers", [_wait(each) for each in objects(stats, "waits")]))
    width = max((len(visible(name)) for _, pairs in groups for name, _ in pairs), default=0)
    page: list[str] = []
    for title, pairs in groups:
        if legend and title and pairs:
            page += ["", f"{visible(title).upper()}"]
        page += [f"{visible(name).ljust(width)}  {value}" for name, value in pairs]
    return page


def _wait(wait: JsonObject) -> tuple[str, str]:
    """Return a blocked publisher, and the recipient it waits for."""
    publisher, recipient, ms = (integer(wait, name) for name in ("publisher", "recipient", "ms"))
    users = [user_name(integer(wait, name)) for name in ("publisher_uid", "recipient_uid")]
    paced = ", paced" if wait.get("paced") is True else ""
    words = (
        f"of {users[0]}: blocked by {human_count(recipient)} of {users[1]} for {human_duration(None if ms is None else ms / 1000)}{paced}"
    )
    return human_count(publisher), words


def _value(name: str, value: object, now: float) -> str:
    """Return one value as text, bytes with units, and a date with its age at *now*."""
    if value is None:
        return NOTHING
    if name == _SINCE and isinstance(value, float) and 0 <= value <= _LATEST:
        return f"{local_time(value)} ({human_duration(now - value)} ago)"
    if isinstance(value, list):
        return waits_text([item for item in value if isinstance(item, dict)], None) or NOTHING
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith("_bytes"):
        return human_bytes(value)
    return visible(str(value))
