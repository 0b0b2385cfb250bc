"""Reads the states that links published, the JSON objects of ``link/state``. Spec: sbus-link(8)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sbus_archive.pipeline.partials.portions import Portion
from sbus_archive.pipeline.partials.rows import read_rows
from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import RowKind
from sbus_archive.record.segments import RecordReader

KEY = "link/state"
VERSION = 1
"""The version of the object that is read here."""

LINK = ""
"""The name of the entry for the link itself. No host has it."""

MAX_COUNT = 2**48
"""A counter above this is invalid: 32,000 of them can be added without an overflow."""

_MAX_SECONDS = 2**63 / 1e9
_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")

HOST_REJECTED = ("malformed", "stale", "refused_by_import", "too_long", "refused_secrets", "lines_refused", "changes_refused")
LINK_REJECTED = ("rejected", "foreign_subjects", "hosts_refused", "patterns_refused")
LINK_DROPPED = ("spool_dropped", "too_long", "over_rate", "refused_secrets")
NETWORK_REJECTED = ("forged", "refused_connections", "ended_handshakes")
NETWORK_DROPPED = ("dropped", "oversize")
"""Members of the state that are added up for the columns ``rejected`` and ``dropped``."""


class Entry(NamedTuple):
    """What a state says about another host, or with the name :data:`LINK` about the link itself. Counters begin when the link starts."""

    name: str
    alive: bool
    """Whether the host is alive, or the network is connected."""
    messages: int = 0
    bytes: int = 0
    lost: int = 0
    unknown_losses: int = 0
    duplicates: int = 0
    rejected: int = 0
    disconnects: int | None = 0
    """None if the state does not count them: links without a server count the connections to all hosts together."""
    dropped: int = 0


class LinkState(NamedTuple):
    """One state: ``started`` is in nanoseconds since 1970, ``spooled`` in bytes; ``omitted`` is the number of hosts that are not in it."""

    realm: str
    link: str
    started: int
    spooled: int
    omitted: int
    entries: list[Entry]


def read_state(payload: bytes | None) -> LinkState | None:
    """Return the state in *payload*; None if it is missing, truncated, invalid or of another version."""
    try:
        value = json.loads(payload or b"")
        if value["version"] != VERSION:
            return None
        entries = [_own_entry(value), *(_host_entry(host) for host in value["hosts"])]
        if len({entry.name for entry in entries}) < len(entries):
            return None
        started = int(_seconds(value["started"]) * 10**9)
        # A link with few hosts need not say that it omits none.
        omitted = _count(value, "hosts_omitted") if "hosts_omitted" in value else 0
        return LinkState(_name(value["realm"]), _name(value["host"]), started, _count(value, "spooled_bytes"), omitted, entries)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _own_entry(value: dict[str, Any]) -> Entry:
    network, counters = value["network"], value["counters"]
    connected = _flag(network["connected"])
    connects = _count(network, "connects")
    return Entry(
        LINK,
        connected,
        rejected=_sum(counters, LINK_REJECTED) + _sum(network, NETWORK_REJECTED) + _count(value, "bus_refusals"),
        # Every connection but the present one has ended.
        disconnects=max(0, connects - connected) if value["transport"] == "nats" else None,
        dropped=_sum(counters, LINK_DROPPED) + _sum(network, NETWORK_DROPPED) + _count(value, "discarded_messages"),
    )


def _host_entry(host: dict[str, Any]) -> Entry:
    return Entry(
        _name(host["name"]),
        _flag(host["alive"]),
        _count(host, "messages"),
        _count(host, "bytes"),
        _count(host, "lost"),
        _count(host, "unknown_losses"),
        _count(host, "duplicates"),
        _sum(host, HOST_REJECTED),
        _count(host, "silences"),
    )


def _name(value: object) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError("not a name")


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("not a boolean")


def _seconds(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MAX_SECONDS:
        return value
    raise ValueError("not a time")


def _count(value: dict[str, object], name: str) -> int:
    count = value[name]
    if type(count) is int and 0 <= count <= MAX_COUNT:
        return count
    raise ValueError("not a counter")


def _sum(value: dict[str, object], names: tuple[str, ...]) -> int:
    return sum(_count(value, name) for name in names)


UNIT = "sbus-link.service"
"""Only root and this system unit publish states: a bus without the rules of the package lets every user do it."""

COUNTERS = ("messages", "bytes", "lost", "unknown_losses", "duplicates", "rejected", "disconnects", "dropped")
"""The counters of an entry of a state."""

_ENTRY = pa.struct([pa.field("name", pa.string()), pa.field("alive", pa.bool_()), *(pa.field(name, pa.int64()) for name in COUNTERS)])
SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.int64()) for name in ("ts", "seq")),
        pa.field("is_following", pa.bool_()),
        *(pa.field(name, pa.string()) for name in ("realm", "link")),
        *(pa.field(name, pa.int64()) for name in ("started", "spooled", "omitted")),
        pa.field("entries", pa.list_(_ENTRY)),
    ]
)
"""The columns of a state; ``is_following``: it is of an hour after those that are computed."""


def links(record: RecordReader, portion: Portion) -> Iterator[pa.Table]:
    """Yield the valid states of links: one row each, ``entries`` has the link itself and the other hosts."""
    is_trusted = (pc.field("uid") == 0) | (pc.field("unit") == UNIT)
    wanted = (pc.field("kind") == RowKind.MESSAGE.value) & (pc.field("key") == KEY) & is_trusted & pc.field("vouched").is_null()
    for entry in portion.segments:
        # Reading the payloads takes longer than all else, and few segments have a state.
        if next(read_rows(record, [entry], ["seq"], wanted), None) is None:
            continue
        for rows in read_rows(record, [entry], ["ts", "seq", "payload"], wanted):
            found = [state for row in rows.to_pylist() if (state := _state(row["ts"], row["seq"], row["payload"])) is not None]
            yield pa.Table.from_pylist([{**state, "is_following": portion.is_following} for state in found], SCHEMA)


def _state(ts: int, seq: int, payload: bytes | None) -> dict[str, object] | None:
    """Return the state in a message; None if it has none."""
    state = read_state(payload)
    # Otherwise a clock that was set back could place the same start in two hours.
    if state is None or ts // HOUR_NS < state.started // HOUR_NS:
        return None
    return {"ts": ts, "seq": seq, **state._asdict(), "entries": [entry._asdict() for entry in state.entries]}
