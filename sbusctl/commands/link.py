"""``sbusctl link``: shows the state of the link to other hosts, waits for it, and prints the configuration of a NATS server."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sbus import Bus, NoRecipient
from sbus.bus_documents import JsonObject
from sbus.bus_socket import SYSTEM_ADDRESS
from sbus.protocol.errors import SbusError
from sbusctl.formatting import (
    NOTHING,
    Column,
    compact_bytes,
    compact_count,
    human_bytes,
    human_date,
    human_duration,
    human_plural,
    table_lines,
)
from sbusctl.output import JsonStyle, terminal_width, visible, write_json, write_lines, write_page
from sbusctl.responses import integer, mapping, number, objects, text
from sbusctl.settings import MAX_SECONDS, TIMEOUT_SECONDS, forbid_bus, forbid_json, settings_of

SYNC_SECONDS = 30.0
"""Default of ``--timeout``, as long as the link waits."""

_COLUMNS = (
    Column("HOST"),
    Column("STATE"),
    Column("SILENT", is_number=True),
    Column("MESSAGES", is_number=True),
    Column("SIZE", is_number=True, rank=1),
    Column("LOST", is_number=True),
    Column("UNKNOWN", is_number=True),
    Column("WANTS", is_number=True, rank=2),
    Column("WANTED", is_number=True, rank=3),
    Column("ERRORS", is_number=True),
)

_ERRORS = (
    "malformed",
    "stale",
    "refused_by_import",
    "refused_secrets",
    "lines_refused",
    "changes_refused",
    "lines_refused_there",
    "too_long",
)
"""The counters of a host that are added under ERRORS."""


class NoLinkError(NoRecipient):
    """The bus has no link."""

    def __init__(self, address: str) -> None:
        """*address* is that of the bus. Only the system bus has a unit for it."""
        advice = "start it: systemctl start sbus-link" if address == SYSTEM_ADDRESS else "start it for this bus: sbus-link -C FILE"
        SbusError.__init__(self, f"no link on this bus; {advice}")


class LinkStateError(SbusError):
    """The response of the link is not a state."""


TimeoutOption = Annotated[float, typer.Option("--timeout", min=0, max=MAX_SECONDS, metavar="SECONDS", help="Maximum time to wait.")]


def status_action(context: typer.Context, *, timeout: TimeoutOption = SYNC_SECONDS) -> None:
    """Show the link, and the hosts that it knows."""
    settings = settings_of(context)
    with settings.connect(max(TIMEOUT_SECONDS, timeout)) as bus:
        state = link_state(bus, settings.bus_address(), timeout)
    if settings.json is JsonStyle.OFF:
        write_page(lines(state, legend=settings.legend, width=terminal_width()), pager=settings.pager)
    else:
        write_json(state, settings.json)


def sync_action(context: typer.Context, *, timeout: TimeoutOption = SYNC_SECONDS) -> None:
    """Wait until all live hosts know the subscriptions of this host."""
    forbid_json(context, "link sync")
    settings = settings_of(context)
    with settings.connect(max(TIMEOUT_SECONDS, timeout)) as bus:
        call_link(bus, settings.bus_address(), "link/sync", timeout)


def config_action(
    context: typer.Context,
    *,
    hosts: Annotated[list[str], typer.Argument(metavar="HOST", help="Names of all hosts.")],
    realm: Annotated[str, typer.Option("--realm", metavar="NAME", help="Name of the realm, which all hosts share.")],
    listen: Annotated[str, typer.Option("--listen", metavar="ADDRESS", help="Address and port of the server.")] = "0.0.0.0:4222",
    certificate: Annotated[str, typer.Option("--certificate", metavar="FILE", help="Certificate of the server.")] = "/etc/nats/server.pem",
    key: Annotated[str, typer.Option("--key", metavar="FILE", help="Private key of the server.")] = "/etc/nats/server.key",
    authority: Annotated[
        str, typer.Option("--authority", metavar="FILE", help="Certificates of the authority of the hosts.")
    ] = "/etc/nats/authority.pem",
    nkey: Annotated[
        list[str] | None, typer.Option("--nkey", metavar="HOST=KEY", help="Public nkey of a host, instead of its certificate; repeatable.")
    ] = None,
) -> None:
    """Print a configuration for a NATS server."""
    forbid_json(context, "link config")
    forbid_bus(context, "link config")
    _print_configuration(realm, hosts, listen, (certificate, key, authority), nkey or [])


def link_state(bus: Bus, address: str, timeout: float) -> JsonObject:
    """Return the state of the link on *bus*, which is at *address*, sbus-link(8).

    Raises:
        NoLinkError: the bus has no link.
        LinkStateError: the response is not an object.
    """
    answer = call_link(bus, address, "link/status", timeout)
    try:
        state = json.loads(answer)
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise LinkStateError("invalid response to link/status: not a JSON object; check the version of sbus-link")
    return state


def call_link(bus: Bus, address: str, command: str, timeout: float) -> bytes:
    """Return the response of the link on *bus*, which is at *address*. Raises NoLinkError, and what a call raises."""
    try:
        return bus.call(command, timeout=timeout)
    except NoRecipient:
        raise NoLinkError(address) from None


def lines(state: JsonObject, *, legend: bool, width: int | None) -> list[str]:
    """Return *state* as text: the link, then a table of the other hosts."""
    network = mapping(state, "network")
    counters = mapping(state, "counters")
    pairs = [
        ("realm", text(state, "realm") or NOTHING),
        ("host", text(state, "host") or NOTHING),
        ("network", _network(text(state, "transport") or NOTHING, network)),
        ("sent", human_plural(integer(counters, "messages") or 0, "message")),
        ("spooled", human_bytes(integer(state, "spooled_bytes"))),
        ("dropped", human_plural(_sum(counters, "spool_dropped", "over_rate", "too_long") + _sum(network, "dropped"), "message")),
        ("not published", human_plural(_sum(state, "discarded_messages"), "message")),
    ]
    if (end := number(state, "certificate_end")) is not None:
        pairs.append(("certificate", f"valid until {human_date(end)}"))
    if error := text(network, "last_error"):
        pairs.append(("last error", error))
    indent = max(len(name) for name, _ in pairs)
    page = [f"{name.ljust(indent)}  {visible(value)}" for name, value in pairs]
    hosts = objects(state, "hosts")
    if hosts:
        page += ["", *table_lines(_COLUMNS, [_row(host) for host in hosts], legend=legend, width=width)]
    if omitted := integer(state, "hosts_omitted"):
        page += ["", f"{human_plural(omitted, 'more host')} not shown."]
    return page


def _network(transport: str, network: JsonObject) -> str:
    """Return the state of the connection."""
    server = " ".join(word for word in (text(network, "server"), text(network, "server_version")) if word)
    words = ["connected" if network.get("connected") is True else "not connected", transport, *([server] if server else [])]
    if network.get("encrypted") is not True:
        words.append("not encrypted")
    return ", ".join(words)


def _row(host: JsonObject) -> list[str]:
    """Return the cells of one host."""
    return [
        text(host, "name") or NOTHING,
        "alive" if host.get("alive") is True else "gone",
        human_duration(number(host, "silent_seconds")),
        compact_count(integer(host, "messages")),
        compact_bytes(integer(host, "bytes")),
        compact_count(integer(host, "lost")),
        compact_count(integer(host, "unknown_losses")),
        compact_count(integer(host, "patterns_there")),
        compact_count(integer(host, "patterns_here")),
        compact_count(_sum(host, *_ERRORS)),
    ]


def _sum(counters: JsonObject, *names: str) -> int:
    """Return the sum of the counters that are there."""
    return sum(integer(counters, name) or 0 for name in names)


def _print_configuration(realm: str, hosts: list[str], listen: str, files: tuple[str, str, str], nkeys: list[str]) -> None:
    """Print the configuration of a server."""
    from sbus_services.link.permissions import ServerSettings, server_configuration  # noqa: PLC0415 - needs pydantic, which is slow

    keys: dict[str, str] = {}
    for each in nkeys:
        host, equals, public = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"invalid nkey {each!r}: write HOST=KEY", param_hint="--nkey")
        keys[host] = public
    try:
        settings = ServerSettings(realm, hosts, listen, *files, nkeys=keys)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    write_lines(server_configuration(settings).splitlines())
