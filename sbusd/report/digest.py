"""The data of the page: the tables, aggregated, as one JSON object.

Tables are columns of equal length; users and keys are indexes into the lists ``users`` and ``keys``. Every list is bounded, so the page of
a month is not larger than that of a day, however many keys clients invent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sbusd.archive.tables.storage import TableSnapshot
from sbusd.report.aggregation import BIN, UNKNOWN, Categories, aggregate, aggregate_entries, most_used, replace_columns, with_bins
from sbusd.report.coverage import Coverage, coverage_of

BINS = 120
"""Maximum number of points of a chart over time: a phone has about three pixels for each."""

MOST_KEYS = 24
MOST_USERS = 16
"""Number of keys and users that the page distinguishes. With 120 points in time and two hosts, the data stay below a megabyte; the chart
library has five.
"""

MOST_PEERS = 10
"""Number of other hosts that the chart distinguishes."""

MOST_ROWS = 400
"""Maximum number of rows of other lists: readers look at the first ten, and use filters for the rest."""

MOST_CHARACTERS = 200
"""Maximum length of a text from the bus."""

MOST_POINTS = 20_000
"""Maximum number of points of the traffic chart, for all keys, users and hosts: about half a megabyte. If there are more, bins get
longer."""

_STEPS = (1, 5, 15, 60, 180, 360, 720, 1440, 10080, 43200)
"""Possible lengths of a bin, in minutes."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Digest:
    """The data for the page: ``data`` is JSON; ``covers`` is its coverage."""

    data: dict[str, Any]
    covers: Coverage


def digest_of(snapshot: TableSnapshot, name_of: Callable[[int], str | None], made_ms: int) -> Digest:
    """Return the digest of *snapshot*. *name_of* returns the login name of a user id; *made_ms* is the current time in ms since 1970."""
    tables, covers = snapshot.tables, coverage_of(snapshot.manifests.values())
    by_key_and_user = aggregate(tables["traffic"], ["prefix", "uid"], ["messages"])
    keys: Categories[str] = most_used(((row["prefix"], row["messages"]) for row in by_key_and_user), MOST_KEYS, _cut_text)
    users = _users(tables, by_key_and_user, name_of)
    hosts = sorted(covers.hosts)
    minutes, traffic = _traffic(tables["traffic"], _bin_minutes(covers), keys, users, hosts)
    data = {
        "made": made_ms,
        "binMinutes": minutes,
        "hosts": hosts,
        "keys": keys.labels,
        "users": users.labels,
        "covers": covers.to_json(),
        "traffic": traffic,
        "units": _units(tables["users"], users, hosts),
        "flows": _flows(tables["flows"], keys, users, hosts),
        "calls": _calls(tables["calls"], users, hosts),
        "losses": _losses(tables["losses"], minutes, keys, users, hosts),
        "security": _security(tables["security"], keys, users, hosts),
        "relay": _relay(tables["relay"], hosts),
        **_links(tables["links"], minutes, hosts),
    }
    return Digest(data, covers)


def _users(tables: dict[str, pa.Table], traffic: Rows, name_of: Callable[[int], str | None]) -> Categories[int]:
    """Return the users with a name of their own: those that published most, were refused most, or lost most."""
    refused = [(row["uid"], row["events"]) for row in aggregate(tables["security"], ["uid"], ["events"])]
    lost = [(row["uid"], row["lost"]) for row in aggregate(tables["users"], ["uid"], ["lost"])]
    weights: Counter[int | None] = Counter()
    for source in ([(row["uid"], row["messages"]) for row in traffic], refused, lost):
        whole = sum(weight for _, weight in source) or 1
        for uid, weight in source:
            weights[uid] += weight * 10**6 // whole

    def label(uid: int) -> str:
        name = name_of(uid)
        return f"{_cut_text(name)} ({uid})" if name else f"uid {uid}"

    return most_used(weights.items(), MOST_USERS, label, UNKNOWN)


def _bin_minutes(covers: Coverage) -> int:
    """Return the length of a bin in minutes."""
    if covers.period is None:
        return _STEPS[0]
    first, last = covers.period
    return next((step for step in _STEPS if (last - first) // (step * 60 * 10**9) < BINS - 1), _STEPS[-1])


def _traffic(
    table: pa.Table, finest: int, keys: Categories[str], users: Categories[int], hosts: list[str]
) -> tuple[int, dict[str, list[Any]]]:
    """Return messages and bytes by time, key, user and host, and the length of a bin in minutes, at least *finest*."""
    sums = ("messages", "bytes", "recipients", "unheard")
    # Replaced by numbers first: the page distinguishes a few dozen of ten thousand prefixes.
    table = replace_columns(table, prefix=keys.numbers(table.column("prefix")), uid=users.numbers(table.column("uid")))
    for minutes in _STEPS[_STEPS.index(finest) :]:
        rows = aggregate(with_bins(table, minutes), [BIN, "prefix", "uid", "host"], sums)
        placed = [((row[BIN], row["prefix"], row["uid"], hosts.index(row["host"])), row) for row in rows]
        columns = _columns(("bin", "key", "user", "host"), sums, placed)
        if len(columns["bin"]) <= MOST_POINTS:
            break
    return minutes, columns


def _units(table: pa.Table, users: Categories[int], hosts: list[str]) -> dict[str, Any]:
    """Return the activity of each user and unit."""
    sums = ("messages", "bytes", "connections", "subscriptions", "denials", "lost")
    rows = _first(aggregate(table, ["uid", "unit", "host"], sums), "messages")
    return _columns(
        ("user", "unit", "host"), sums, [((users.number(row["uid"]), _cut(row["unit"]), hosts.index(row["host"])), row) for row in rows]
    )


def _flows(table: pa.Table, keys: Categories[str], users: Categories[int], hosts: list[str]) -> dict[str, Any]:
    """Return deliveries by publisher, key and recipient; -1 is an unknown recipient."""
    sums = ("deliveries", "bytes")
    to = table.column("to_uid")
    table = replace_columns(
        table,
        from_uid=users.numbers(table.column("from_uid")),
        prefix=keys.numbers(table.column("prefix")),
        to_uid=pc.if_else(pc.is_null(to), -1, users.numbers(to)),
    )
    rows = aggregate(table, ["from_uid", "prefix", "to_uid", "host"], sums)
    placed = [((row["from_uid"], row["prefix"], row["to_uid"], hosts.index(row["host"])), row) for row in rows]
    return _columns(("from", "key", "to", "host"), sums, placed)


def _calls(table: pa.Table, users: Categories[int], hosts: list[str]) -> dict[str, Any]:
    """Return calls by command, caller and host; latencies are pairs of bucket and count."""
    sums = ("calls", "answered", "errors", "timeouts", "unanswered", "undelivered")
    by = ["cmd", "caller_uid", "host"]
    rows = _first(aggregate(table, by, sums, largest=["latency_max_us"]), "calls")
    places = {tuple(row[name] for name in by): place for place, row in enumerate(rows)}
    groups = [places.get(party) for party in zip(*(table.column(name).to_pylist() for name in by), strict=True)]
    latencies = aggregate_entries(groups, table.column("latencies"), "bucket", "calls")
    columns = _columns(
        ("cmd", "user", "host"),
        (*sums, "latency_max_us"),
        [((_cut(row["cmd"]), users.number(row["caller_uid"]), hosts.index(row["host"])), row) for row in rows],
    )
    return {**columns, "latencies": [latencies.get(place, []) for place in range(len(rows))]}


def _losses(table: pa.Table, minutes: int, keys: Categories[str], users: Categories[int], hosts: list[str]) -> dict[str, Any]:
    """Return losses by time and cause; user and key are -1 where the cause has none."""
    sums = ("events", "count", "duration_us")
    rows = aggregate(with_bins(table, minutes), [BIN, "cause", "uid", "prefix", "host"], sums)
    placed = []
    for row in rows:
        of_someone = row["cause"] in {"discarded", "lost", "abandoned"}
        user = users.number(row["uid"]) if of_someone else -1
        key = keys.number(row["prefix"]) if row["cause"] == "discarded" else -1
        placed.append(((row[BIN], row["cause"], user, key, hosts.index(row["host"])), row))
    return _columns(("bin", "cause", "user", "key", "host"), sums, placed)


def _security(table: pa.Table, keys: Categories[str], users: Categories[int], hosts: list[str]) -> dict[str, Any]:
    """Return refusals, the most frequent first."""
    by = ["class", "code", "reason", "uid", "unit", "key", "host"]
    rows = _first(aggregate(table, by, ["events"], smallest=["first"], largest=["last"]), "events")
    placed = []
    for row in rows:
        texts = (_cut(row["class"]), _cut(row["code"]), _cut(row["reason"]), _cut(row["unit"]), _cut(row["key"]))
        prefix = None if row["key"] is None else "/".join(row["key"].split("/")[:2])
        times = (int(row["first"].timestamp() * 1000), int(row["last"].timestamp() * 1000))
        placed.append(((*texts, *times, users.number(row["uid"]), keys.number(prefix), hosts.index(row["host"])), row))
    return _columns(("class", "code", "reason", "unit", "what", "first", "last", "user", "key", "host"), ("events",), placed)


def _relay(table: pa.Table, hosts: list[str]) -> dict[str, Any]:
    """Return relay attempts."""
    sums = ("attempts", "retries", "calls")
    rows = _first(aggregate(table, ["twin", "cmd", "outcome", "host"], sums, largest=["longest_us"]), "attempts")
    placed = [((row["twin"], _cut(row["cmd"]), _cut(row["outcome"]), hosts.index(row["host"])), row) for row in rows]
    return _columns(("twin", "cmd", "outcome", "host"), (*sums, "longest_us"), placed)


def _links(table: pa.Table, minutes: int, hosts: list[str]) -> dict[str, Any]:
    """Return other hosts, and links themselves, in all; and the messages and losses of other hosts by time. ``peers`` are their names."""
    sums = ("alive_us", "messages", "bytes", "lost", "unknown_losses", "duplicates", "rejected", "disconnects", "dropped", "states")
    by = ["realm", "link", "peer", "host"]
    rows = aggregate(table, by, sums, largest=["spooled_max_bytes"])
    others = [row for row in rows if row["peer"] != ""]
    peers: Categories[str] = most_used(((row["peer"], row["messages"]) for row in others), MOST_PEERS, _cut_text)
    own = _first([row for row in rows if row["peer"] == ""], "states")
    placed = [((*(_cut(row[name]) for name in by[:3]), hosts.index(row["host"])), row) for row in own + _first(others, "messages")]
    timed = table.filter(pc.invert(pc.fill_null(pc.equal(table.column("peer"), ""), False)))
    timed = with_bins(replace_columns(timed, peer=peers.numbers(timed.column("peer"))), minutes)
    shown = ("messages", "bytes", "lost", "unknown_losses")
    bins = [((row[BIN], row["peer"], hosts.index(row["host"])), row) for row in aggregate(timed, [BIN, "peer", "host"], shown)]
    return {
        "peers": peers.labels,
        "links": _columns((*by[:3], "host"), (*sums, "spooled_max_bytes"), placed),
        "linkTimes": _columns(("bin", "peer", "host"), shown, bins),
    }


def _first(rows: Rows, name: str) -> Rows:
    """Return the first MOST_ROWS rows in descending order of *name*."""
    return sorted(rows, key=lambda row: (-row[name], repr(row)))[:MOST_ROWS]


def _columns(names: Sequence[str], sums: Sequence[str], rows: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> dict[str, list[Any]]:
    """Return columns from *rows* of key values and sums; rows with the same key values are added."""
    added: dict[tuple[Any, ...], list[Any]] = {}
    for place, row in rows:
        values = added.setdefault(place, [None] * len(sums))
        for position, name in enumerate(sums):
            if row[name] is not None:
                values[position] = row[name] + (values[position] or 0)
    columns = list(zip(*((*place, *values) for place, values in added.items()), strict=True)) or [()] * (len(names) + len(sums))
    return {name: list(column) for name, column in zip((*names, *sums), columns, strict=True)}


def _cut(text: str | None) -> str | None:
    """Return *text*, truncated to MOST_CHARACTERS."""
    return None if text is None else _cut_text(text)


def _cut_text(text: str) -> str:
    """Return *text*, truncated to MOST_CHARACTERS."""
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"
