"""What happened between two samples: pure, from samples to rows.

A row is a flat object, as ``--json`` prints it: counters as the bus tells them, rates under ``<counter>_per_second``. A rate is None
where it cannot be known: of the first sample, and where a counter has gone back, as after a restart of the bus.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Protocol

from sbusd.ctl.responses import ConnectionInfo, JsonObject, integer, mapping, number
from sbusd.ctl.top.samples import Sample
from sbusd.ctl.top.sockets import QueueDepths

Row = dict[str, object]

RATED = (
    "received_packets",
    "received_bytes",
    "delivered_packets",
    "delivered_bytes",
    "lost_packets",
    "refused_packets",
    "blocked_ms",
    "blocked_others_ms",
)
"""The counters of which rates are shown; ``received`` is what the bus read, ``delivered`` what it handed out."""

HELD = ("queued_packets", "queued_bytes")
"""What waits now."""


class Names(Protocol):
    """Who the processes and users are."""

    def of(self, connection: ConnectionInfo) -> Mapping[str, str]:
        """Return ``user``, ``command`` and ``unit`` of a connection."""

    def user(self, uid: int | None) -> str:
        """Return the name of a user."""


def per_second(before: int | None, after: int | None, seconds: float) -> float | None:
    """Return the growth of a counter in each of *seconds*, or None where it cannot be told."""
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return (after - before) / seconds


def connection_rows(earlier: Sample | None, later: Sample, names: Names) -> list[Row]:
    """Return a row for each connection of *later*. One that *earlier* has not seen has done all it did since then."""
    seconds = 0.0 if earlier is None else later.moment - earlier.moment
    rows: list[Row] = []
    for key, each in later.connections.items():
        row: Row = {**asdict(each), "mode": _mode(each), **names.of(each), **later.depths.get(key, QueueDepths())._asdict()}
        before = None if earlier is None else earlier.connections.get(key)
        for counter in RATED:
            value: int | None = getattr(each, counter)
            first: int | None = 0 if before is None else getattr(before, counter)
            row[f"{counter}_per_second"] = None if earlier is None else per_second(first, value, seconds)
        rows.append(row)
    return rows


def user_rows(connections: Iterable[Row], told: Iterable[JsonObject], names: Names) -> list[Row]:
    """Return a row for each user: the sums of its *connections*, and over them what the bus has *told* of it.

    What the bus tells is more: users whose connections have ended, limits, and refusals by them.
    """
    by_uid: dict[int, list[Row]] = {}
    for each in connections:
        uid = each["uid"]
        if isinstance(uid, int):
            by_uid.setdefault(uid, []).append(each)
    items = {key: item for item in told if (key := integer(item, "uid")) is not None}
    rows: list[Row] = []
    for key in sorted({*by_uid, *items}):
        own = by_uid.get(key, [])
        row: Row = {"uid": key, "user": names.user(key), "connections": len(own)}
        row |= {name: _sum(own, name) for name in ("subscriptions", "replaced_packets", *HELD, *QueueDepths._fields, *RATED)}
        row |= {f"{name}_per_second": _sum(own, f"{name}_per_second") for name in RATED}
        item = items.get(key, {})
        row |= {name: integer(item, name) if isinstance(item[name], int) else item[name] for name in item}
        rows.append(row | _quotas(item))
    return rows


def _mode(connection: ConnectionInfo) -> str | None:
    """Return the modes of a connection in one word: soft, hard, order; None if the bus does not tell them all."""
    modes = (connection.soft, connection.hard, connection.order)
    return "/".join(mode for mode in modes if mode is not None) if None not in modes else None


def _quotas(item: JsonObject) -> Row:
    """Return how close a user is to the quota that it has used most of, as a share of 1, which one that is, and its refusals by all."""
    limits, refused = mapping(item, "limits"), mapping(item, "refused")
    shares = []
    for name in limits:
        used, limit = integer(item, name), integer(limits, name)
        if used is not None and limit:
            shares.append((used / limit, name))
    share, nearest = max(shares, default=(None, None))
    refusals = [count for name in refused if (count := integer(refused, name)) is not None]
    return {"quota_share": share, "quota_nearest": nearest, "quota_refusals": sum(refusals) if "refused" in item else None}


def totals(earlier: Sample | None, later: Sample, rows: list[Row]) -> Row:
    """Return the sums over the bus.

    They are the bus's own counters where it tells them, which is to its owner: these know of connections that came and went between
    the samples too. Else they are sums over *rows*, the connections of *later*.
    """
    now = mapping(later.stats, "counters")
    before = mapping(earlier.stats, "counters") if earlier is not None else {}
    seconds = 0.0 if earlier is None else later.moment - earlier.moment
    found: Row = {"connections": len(rows), "hidden": later.hidden}
    for name in (*HELD, *RATED):
        value = integer(now, name)
        found[name] = _sum(rows, name) if value is None else value
    for name in RATED:
        value = integer(now, name)
        rate = f"{name}_per_second"
        found[rate] = _sum(rows, rate) if value is None else per_second(integer(before, name), value, seconds)
    found["uptime_seconds"] = number(later.stats, "uptime_seconds")
    return found


def ordered(rows: list[Row], field: str) -> list[Row]:
    """Return *rows* by *field*: the largest number first, texts by the alphabet, None last; of equals the busiest, then the oldest."""

    def place(row: Row) -> tuple[object, ...]:
        return (*_rank(row.get(field)), -_busy(row), row.get("id") or row.get("uid") or 0)

    return sorted(rows, key=place)


def _rank(value: object) -> tuple[int, float, str]:
    """Return what numbers, texts and nothing are sorted by, each kind among itself."""
    if isinstance(value, int | float):
        return (0, -value, "")
    return (1, 0, value) if isinstance(value, str) else (2, 0, "")


def _busy(row: Row) -> float:
    """Return the packets in a second, both ways."""
    return _number(row.get("received_packets_per_second")) + _number(row.get("delivered_packets_per_second"))


def _number(value: object) -> float:
    """Return a number, 0 for anything else."""
    return value if isinstance(value, int | float) else 0.0


def _sum(rows: Iterable[Row], name: str) -> int | float | None:
    """Return the sum of a column, without the rows that do not know it; None if none does."""
    values = [value for row in rows if isinstance(value := row.get(name), int | float)]
    return sum(values) if values else None
