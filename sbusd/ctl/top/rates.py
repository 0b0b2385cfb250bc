"""Computes rows from two samples. No I/O.

A row is a flat object, as printed by ``--json``: counters of the bus, and rates under ``<counter>_per_second``. A rate is None if it is
unknown: in the first sample, and if a counter decreased, as after a restart of the bus.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from sbusd.client.bus_documents import JsonObject
from sbusd.ctl.processes import NameCache
from sbusd.ctl.responses import ConnectionInfo, integer, mapping, number
from sbusd.ctl.top.samples import QueueDepths, Sample

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
"""The counters with rates; ``received`` is what the bus read, ``delivered`` what it delivered."""

HELD = ("queued_packets", "queued_bytes")
"""The current queues."""


def per_second(before: int | None, after: int | None, seconds: float) -> float | None:
    """Return the growth of a counter per second, None if it is unknown."""
    if before is None or after is None or after < before or seconds <= 0:
        return None
    return (after - before) / seconds


def connection_rows(earlier: Sample | None, later: Sample, names: NameCache) -> list[Row]:
    """Return a row for each connection of *later*. The counters of a connection that is not in *earlier* grew since then."""
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


def user_rows(connections: Iterable[Row], reported: Iterable[JsonObject], names: NameCache) -> list[Row]:
    """Return a row for each user: the sums of its *connections*, overridden by the fields in *reported*, the response of the bus.

    The response also includes users whose connections have ended, limits, and refusals.
    """
    by_uid: dict[int, list[Row]] = {}
    for each in connections:
        uid = each["uid"]
        if isinstance(uid, int):
            by_uid.setdefault(uid, []).append(each)
    items = {key: item for item in reported if (key := integer(item, "uid")) is not None}
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
    """Return the modes of a connection in one word: soft, hard, order; None if the bus does not report them all."""
    modes = (connection.soft, connection.hard, connection.order)
    return "/".join(mode for mode in modes if mode is not None) if None not in modes else None


def _quotas(item: JsonObject) -> Row:
    """Return the usage of the most used quota as a fraction of 1, the name of the quota, and the refusals by all quotas."""
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
    """Return the totals of the bus.

    They are the counters of the bus if the bus reports them, which it does to its owner only: these include connections that came and went
    between the samples. Otherwise they are sums over *rows*, the connections of *later*.
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
    """Return *rows* sorted by *field*: highest numbers first, text in alphabetical order, None last; then by packets, then by age."""

    def place(row: Row) -> tuple[object, ...]:
        return (*_rank(row.get(field)), -_busy(row), row.get("id") or row.get("uid") or 0)

    return sorted(rows, key=place)


def _rank(value: object) -> tuple[int, float, str]:
    """Return a sort key for numbers, text and None."""
    if isinstance(value, int | float):
        return (0, -value, "")
    return (1, 0, value) if isinstance(value, str) else (2, 0, "")


def _busy(row: Row) -> float:
    """Return the packets per second in both directions."""
    return _number(row.get("received_packets_per_second")) + _number(row.get("delivered_packets_per_second"))


def _number(value: object) -> float:
    """Return a number, 0 if it is something else."""
    return value if isinstance(value, int | float) else 0.0


def _sum(rows: Iterable[Row], name: str) -> int | float | None:
    """Return the sum of a column over the rows that have it; None if none has."""
    values = [value for row in rows if isinstance(value := row.get(name), int | float)]
    return sum(values) if values else None
