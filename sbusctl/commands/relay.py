"""``sbusctl relay``: shows the state of calls between hosts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sbus.protocol.errors import SbusError
from sbus_programs.config.relay import REDIS
from sbusctl.formatting import NOTHING, Column, human_duration, table_lines
from sbusctl.output import JsonStyle, terminal_width, visible, write_json, write_page
from sbusctl.settings import forbid_bus, settings_of

_COLUMNS = (
    Column("HOST", is_number=True),
    Column("WAITING", is_number=True),
    Column("SENDING", is_number=True),
    Column("NEXT-RETRY", is_number=True),
    Column("LAST-SUCCESS", is_number=True, rank=2),
    Column("LAST-FAILURE", is_number=True, rank=1),
    Column("FAILURES", is_number=True),
    Column("REASON", least=24),
)


_DURABILITY = {"": "a crash of Redis loses no confirmed message", None: "unknown: Redis does not disclose its settings"}


class _MissingError(SbusError):
    """redis-py is not installed."""


def status_action(
    context: typer.Context,
    *,
    redis: Annotated[str, typer.Option("--redis", metavar="REDIS", help="Redis of the relay: HOST:PORT, a socket path, or a URL.")] = REDIS,
) -> None:
    """Show the state of calls between hosts.

    The output is read from Redis, so it is available while no relay runs: queues, remote hosts and counters.
    """
    forbid_bus(context, "relay status")
    settings = settings_of(context)
    try:
        from sbus_services.relay.redis.status import read_status  # noqa: PLC0415 - redis-py is an optional package
    except ModuleNotFoundError as missing:
        raise _MissingError(f"cannot read Redis: {missing.name} is not installed; install it with: pip install 'sbusd[relay]'") from None
    status = read_status(redis)
    if settings.json is JsonStyle.OFF:
        write_page(lines(status, legend=settings.legend, width=terminal_width()), pager=settings.pager)
    else:
        write_json(status, settings.json)


def lines(status: dict[str, Any], *, legend: bool, width: int | None) -> list[str]:
    """Return *status* as text: queues, a table of the other hosts, counters."""
    plain = [*((name, _value(name, value)) for name, value in status["queues"].items()), ("relays", str(status["relays"]))]
    page = _pairs([*plain, ("durability", _DURABILITY.get(status["durability"]) or f"a crash can lose messages: {status['durability']}")])
    if status["peers"]:
        page += ["", *table_lines(_COLUMNS, [_row(twin, peer) for twin, peer in status["peers"].items()], legend=legend, width=width)]
    if status["counters"]:
        page += ["", *_pairs([(name, str(value)) for name, value in status["counters"].items()])]
    return page


def _pairs(pairs: list[tuple[str, str]]) -> list[str]:
    """Return a line for each name and its value."""
    width = max(len(name) for name, _ in pairs)
    return [f"{visible(name).ljust(width)}  {value}" for name, value in pairs]


def _row(twin: str, peer: dict[str, Any]) -> list[str]:
    """Return the cells of one host."""
    times = [_value("seconds", peer[name]) for name in ("next_try_seconds", "reached_seconds_ago", "failed_seconds_ago")]
    return [twin, str(peer["waiting"]), str(peer["sending"]), *times, str(peer["failures"]), peer["reason"] or NOTHING]


def _value(name: str, value: float | None) -> str:
    """Return one value for people."""
    if value is None:
        return NOTHING
    return human_duration(value) if "seconds" in name else str(value)
