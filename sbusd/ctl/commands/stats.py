"""``sbusctl stats``: prints the counters of the bus."""

from __future__ import annotations

import typer

from sbusd.ctl.output import JsonStyle, visible, write_json, write_page
from sbusd.ctl.processes import user_name
from sbusd.ctl.quantities import NOTHING, human_bytes, human_count, human_duration
from sbusd.ctl.responses import JsonObject, ask, integer, mapping, number, objects, waits_text
from sbusd.ctl.settings import settings_of
from sbusd.protocol import controls


def command(context: typer.Context) -> None:
    """Print the counters of the bus.

    Owners see the counters of the whole bus, other users those of this connection.
    """
    settings = settings_of(context)
    with settings.connect() as bus:
        stats = ask(bus, controls.STATS)
    if settings.json is JsonStyle.OFF:
        write_page(lines(stats, legend=settings.legend), pager=settings.pager)
    else:
        write_json(stats, settings.json)


def lines(stats: JsonObject, *, legend: bool) -> list[str]:
    """Return *stats* as lines of name and value; sections are groups, with a legend under their name."""
    apart = ("scope", "uptime_seconds", "waits")
    plain = [(name, stats[name]) for name in stats if not isinstance(stats[name], dict) and name not in apart]
    uptime = number(stats, "uptime_seconds")
    named = [(name, _value(name, value)) for name, value in plain] + ([("uptime", human_duration(uptime))] if uptime is not None else [])
    groups = [("", named)]
    for name in (name for name in stats if isinstance(stats[name], dict)):
        section = mapping(stats, name)
        groups.append((name, [(inner, _value(inner, section[inner])) for inner in section]))
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


def _value(name: str, value: object) -> str:
    """Return one value as text, bytes with units."""
    if value is None:
        return NOTHING
    if isinstance(value, list):
        return waits_text([item for item in value if isinstance(item, dict)], None) or NOTHING
    if isinstance(value, int) and not isinstance(value, bool) and name.endswith("_bytes"):
        return human_bytes(value)
    return visible(str(value))
