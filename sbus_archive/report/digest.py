"""The data of the page: the tables, aggregated, as one JSON object.

Tables are columns of equal length; users and keys are indexes into the lists ``users`` and ``keys``. Every list is bounded, so the page of
a month is not larger than that of a day, however many keys clients invent.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sbus_archive.report.aggregation import (
    BIN,
    OTHERS,
    UNKNOWN,
    Categories,
    aggregate,
    aggregate_entries,
    cut,
    cut_text,
    most_used,
    replace_columns,
    with_bins,
)
from sbus_archive.report.coverage import Coverage, Earlier, coverage_of, length_of
from sbus_archive.report.hosts import CLOSE_COMMAND, distinguished, host_activities, hosts_json
from sbus_archive.tables.storage import TableSnapshot

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

MOST_POINTS = 20_000
"""Maximum number of points of the traffic chart, for all keys, users and hosts: about half a megabyte. If there are more, bins get
longer."""

MOST_FLOWS = 4000
"""Maximum number of rows of flows that are not all others; a busy host has a hundred."""

MOST_CALLS = 3000
"""Maximum number of rows of calls with a command, each with a histogram: seven commands that all users call on all hosts, or many with few
callers."""

_STEPS = (1, 5, 15, 60, 180, 360, 720, 1440, 10080, 43200)
"""Possible lengths of a bin, in minutes."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Digest:
    """The data for the page: ``data`` is JSON; ``covers`` is its coverage."""

    data: dict[str, Any]
    covers: Coverage


def digest_of(snapshot: TableSnapshot, name_of: Callable[[int], str | None], made_ms: int, earlier: Sequence[Earlier] = ()) -> Digest:
    """Return the digest of *snapshot*. *name_of* returns the login name of a user id; *made_ms* is the current time in ms since 1970;
    *earlier* are the periods to compare with."""
    tables, covers = snapshot.tables, coverage_of(snapshot.manifests.values())
    by_key_and_user = aggregate(tables["traffic"], ["prefix", "uid"], ["messages"])
    keys: Categories[str] = most_used(((row["prefix"], row["messages"]) for row in by_key_and_user), MOST_KEYS, cut_text)
    users = _users(tables, by_key_and_user, name_of)
    activities = host_activities(tables, covers)
    hosts = distinguished(activities)
    minutes, traffic = _traffic(tables["traffic"], _bin_minutes(covers), keys, users, hosts)
    units, more_units = _units(tables["users"], users, hosts)
    disconnects, more_disconnects = _disconnects(tables["disconnects"], users, hosts)
    relay, more_relay = _relay(tables["relay"], hosts)
    links, more_links = _links(tables["links"], minutes, hosts)
    commands = _commands([tables["calls"], *(each.snapshot.tables["calls"] for each in earlier if each.snapshot.manifests)], users, hosts)
    data = {
        "made": made_ms,
        "binMinutes": minutes,
        "hosts": hosts.labels if len(hosts.labels) <= len(covers.hosts) else hosts.labels[:-1],
        "hostList": hosts_json(activities, hosts),
        "keys": keys.labels,
        "users": users.labels,
        "covers": covers.to_json(),
        "traffic": traffic,
        "units": units,
        "flows": _flows(tables["flows"], keys, users, hosts),
        "calls": _calls(tables["calls"], commands, users, hosts),
        "losses": _losses(tables["losses"], minutes, keys, users, hosts),
        "security": _security(tables["security"], keys, users, hosts),
        "disconnects": disconnects,
        "relay": relay,
        **links,
        "omitted": {"units": more_units, "disconnects": more_disconnects, "relay": more_relay, "links": more_links},
        "hours": {"length": length_of(snapshot.manifests), "to": _end_ms(snapshot)},
        "before": [_before(each, keys, commands, users, hosts) for each in earlier],
    }
    return Digest(data, covers)


def _before(
    earlier: Earlier, keys: Categories[str], commands: frozenset[str], users: Categories[int], hosts: Categories[str]
) -> dict[str, Any]:
    """Return an earlier period: the number of its hours with rows, in all and of each host, and for the tiles its tables without times.
    Without such hours, it has no tables."""
    period, tables = earlier.period, earlier.snapshot.tables
    # An hour whose segments are all missing has a manifest too.
    hours = [made for made in earlier.snapshot.manifests.values() if made.segments]
    found: dict[str, Any] = {
        "name": period.name,
        "from": period.since.start // 10**6,
        "to": period.until.following.start // 10**6,
        "there": len(hours),
    }
    if not hours:
        return found
    _, traffic = _traffic(tables["traffic"], _STEPS[-1], keys, users, hosts)
    losses = _losses(tables["losses"], _STEPS[-1], keys, users, hosts)
    rows = aggregate(_numbered(tables["security"], uid=users, host=hosts), ["uid", "key", "host"], ["events"])
    placed = [((row["uid"], keys.number(_prefix(row["key"])), row["host"]), row) for row in rows]
    refusals = _columns(("user", "key", "host"), ("events",), placed)
    by_host = Counter(number for made in hours for number in {hosts.number(entry.host) for entry in made.segments})
    found["hostHours"] = [by_host[number] for number in range(len(hosts.labels))]
    calls = _calls(tables["calls"], commands, users, hosts)
    return found | {"traffic": traffic, "calls": calls, "losses": losses, "security": refusals}


def _end_ms(snapshot: TableSnapshot) -> int:
    """Return the end of the last hour in ms since 1970; 0 without hours."""
    return max((hour.following.start // 10**6 for hour in snapshot.manifests), default=0)


def _numbered(table: pa.Table, **columns: Categories[Any]) -> pa.Table:
    """Return *table* with the values of *columns* replaced by their numbers, of which there are a few dozen."""
    return replace_columns(table, **{name: categories.numbers(table.column(name)) for name, categories in columns.items()})


def _prefix(key: str | None) -> str | None:
    """Return the first two segments of *key*."""
    return None if key is None else "/".join(key.split("/", 2)[:2])


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
        return f"{cut_text(name)} ({uid})" if name else f"uid {uid}"

    return most_used(weights.items(), MOST_USERS, label, UNKNOWN)


def _bin_minutes(covers: Coverage) -> int:
    """Return the length of a bin in minutes."""
    if covers.period is None:
        return _STEPS[0]
    first, last = covers.period
    return next((step for step in _STEPS if (last - first) // (step * 60 * 10**9) < BINS - 1), _STEPS[-1])


def _traffic(
    table: pa.Table, finest: int, keys: Categories[str], users: Categories[int], hosts: Categories[str]
) -> tuple[int, dict[str, list[Any]]]:
    """Return messages and bytes by time, key, user and host, and the length of a bin in minutes, at least *finest*."""
    sums = ("messages", "bytes", "recipients", "undeliverable")
    table = _numbered(table, prefix=keys, uid=users, host=hosts)
    for minutes in _STEPS[_STEPS.index(finest) :]:
        rows = aggregate(with_bins(table, minutes), [BIN, "prefix", "uid", "host"], sums)
        placed = [((row[BIN], row["prefix"], row["uid"], row["host"]), row) for row in rows]
        columns = _columns(("bin", "key", "user", "host"), sums, placed)
        if len(columns["bin"]) <= MOST_POINTS:
            break
    return minutes, columns


def _units(table: pa.Table, users: Categories[int], hosts: Categories[str]) -> tuple[dict[str, Any], int]:
    """Return the activity of each user and unit, and the number of omitted rows."""
    sums = ("messages", "bytes", "connections", "subscriptions", "denials", "lost")
    rows = aggregate(_numbered(table, uid=users, host=hosts), ["uid", "unit", "host"], sums)
    placed = [((row["uid"], cut(row["unit"]), row["host"]), row) for row in _ranked(rows, "messages")[:MOST_ROWS]]
    return _columns(("user", "unit", "host"), sums, placed), max(0, len(rows) - MOST_ROWS)


def _flows(table: pa.Table, keys: Categories[str], users: Categories[int], hosts: Categories[str]) -> dict[str, Any]:
    """Return deliveries by publisher, key and recipient; -1 is an unknown recipient. After MOST_FLOWS rows, the rest is in the rows of all
    others."""
    sums = ("deliveries", "bytes")
    to = table.column("to_uid")
    table = replace_columns(
        _numbered(table, from_uid=users, prefix=keys, host=hosts), to_uid=pc.if_else(pc.is_null(to), -1, users.numbers(to))
    )
    rows = _ranked(aggregate(table, ["from_uid", "prefix", "to_uid", "host"], sums), "deliveries")
    placed = [((row["from_uid"], row["prefix"], row["to_uid"], row["host"]), row) for row in rows[:MOST_FLOWS]]
    placed += [((users.others, keys.others, users.others, row["host"]), row) for row in rows[MOST_FLOWS:]]
    return _columns(("from", "key", "to", "host"), sums, placed)


def _commands(tables: Sequence[pa.Table], users: Categories[int], hosts: Categories[str]) -> frozenset[str]:
    """Return the commands that the page names in the calls of each period, *tables*: CLOSE_COMMAND, whose calls have not failed, and those
    with most calls in the first of *tables*. They are at most MOST_ROWS, and have at most MOST_CALLS rows in each period."""
    calls: Counter[str | None] = Counter()
    widths: Counter[str | None] = Counter()
    for number, table in enumerate(tables):
        rows = aggregate(_numbered(table, caller_uid=users, host=hosts), ["cmd", "caller_uid", "host"], ["calls"])
        widths |= Counter(row["cmd"] for row in rows)
        for row in rows if number == 0 else ():
            calls[row["cmd"]] += row["calls"]
    ranked = sorted((name for name in calls if name is not None), key=lambda name: (name != CLOSE_COMMAND, -calls[name], name))
    ends = itertools.accumulate(widths[name] for name in ranked[:MOST_ROWS])
    return frozenset(name for name, end in zip(ranked[:MOST_ROWS], ends, strict=True) if end <= MOST_CALLS) | {CLOSE_COMMAND}


def _calls(table: pa.Table, commands: frozenset[str], users: Categories[int], hosts: Categories[str]) -> dict[str, Any]:
    """Return calls by command, caller and host; latencies are :func:`packed`. All but *commands* are in the rows without a
    command."""
    sums = ("calls", "answered", "errors", "timeouts", "unanswered", "undelivered")
    by = ["cmd", "caller_uid", "host"]
    table = _numbered(table, caller_uid=users, host=hosts)
    rows = _ranked(aggregate(table, by, sums, largest=["latency_max_us"]), "calls")
    names = {name: cut_text(name) for name in commands}
    parties = {tuple(row[name] for name in by): (names.get(row["cmd"]), row["caller_uid"], row["host"]) for row in rows}
    placed = [(parties[tuple(row[name] for name in by)], row) for row in rows]
    columns = _columns(("cmd", "user", "host"), sums, placed, largest=("latency_max_us",))
    # Different rows can have the same party, so the latencies are summed by party too.
    places = {party: place for place, party in enumerate(zip(columns["cmd"], columns["user"], columns["host"], strict=True))}
    groups = [places[parties[row]] for row in zip(*(table.column(name).to_pylist() for name in by), strict=True)]
    latencies = aggregate_entries(groups, table.column("latencies"), "bucket", "calls")
    return {**columns, "latencies": [packed(latencies.get(place, [])) for place in range(len(places))]}


def packed(histogram: Iterable[tuple[int, int]]) -> list[int]:
    """Return pairs of bucket and count, in order, as one list: the distance of each bucket from the one before, and its count.

    Most distances have one digit; bucket numbers would be most of the page.
    """
    found, before = [], 0
    for bucket, count in histogram:
        found += [bucket - before, count]
        before = bucket
    return found


def _losses(table: pa.Table, minutes: int, keys: Categories[str], users: Categories[int], hosts: Categories[str]) -> dict[str, Any]:
    """Return losses by time and cause; user and key are -1 where the cause has none."""
    sums = ("events", "count", "duration_us")
    numbered = _numbered(table, uid=users, prefix=keys, host=hosts)
    placed = []
    for row in aggregate(with_bins(numbered, minutes), [BIN, "cause", "uid", "prefix", "host"], sums):
        user = row["uid"] if row["cause"] in {"discarded", "lost", "abandoned"} else -1
        key = row["prefix"] if row["cause"] == "discarded" else -1
        placed.append(((row[BIN], row["cause"], user, key, row["host"]), row))
    return _columns(("bin", "cause", "user", "key", "host"), sums, placed)


def _security(table: pa.Table, keys: Categories[str], users: Categories[int], hosts: Categories[str]) -> dict[str, Any]:
    """Return refusals, the most frequent first. After MOST_ROWS rows, the rest has OTHERS instead of its texts."""
    by = ["class", "code", "reason", "uid", "unit", "key", "host"]
    table = _numbered(table, uid=users, host=hosts)
    rows = _ranked(aggregate(table, by, ["events"], smallest=["first"], largest=["last"]), "events")
    found: dict[tuple[Any, ...], list[int]] = {}
    for number, row in enumerate(rows):
        texts = [cut(row[name]) for name in ("class", "code", "reason", "unit", "key")]
        if number >= MOST_ROWS:
            texts = [texts[0], None, None, None, OTHERS]
        place = (*texts, row["uid"], keys.number(_prefix(row["key"])), row["host"])
        first, last = (int(row[name].timestamp() * 1000) for name in ("first", "last"))
        known = found.get(place, [first, last, 0])
        found[place] = [min(first, known[0]), max(last, known[1]), row["events"] + known[2]]
    names = ("class", "code", "reason", "unit", "what", "user", "key", "host", "first", "last", "events")
    columns = list(zip(*((*place, *values) for place, values in found.items()), strict=True)) or [()] * len(names)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


def _disconnects(table: pa.Table, users: Categories[int], hosts: Categories[str]) -> tuple[dict[str, Any], int]:
    """Return connections that ended, those with an error of the bus first, and the number of omitted rows."""
    sums = ("disconnects", "abandoned")
    rows = aggregate(_numbered(table, uid=users, host=hosts), ["uid", "unit", "code", "reason", "host"], sums)
    rows = sorted(_ranked(rows, "disconnects"), key=lambda row: (row["code"] is None, -row["abandoned"]))
    placed = [((row["uid"], *(cut(row[name]) for name in ("unit", "code", "reason")), row["host"]), row) for row in rows[:MOST_ROWS]]
    return _columns(("user", "unit", "code", "reason", "host"), sums, placed), max(0, len(rows) - MOST_ROWS)


def _relay(table: pa.Table, hosts: Categories[str]) -> tuple[dict[str, Any], int]:
    """Return relay attempts, and the number of omitted rows."""
    sums = ("attempts", "retries", "calls")
    rows = aggregate(_numbered(table, host=hosts), ["twin", "cmd", "outcome", "host"], sums, largest=["longest_us"])
    shown = _ranked(rows, "attempts")[:MOST_ROWS]
    placed = [((row["twin"], cut(row["cmd"]), cut(row["outcome"]), row["host"]), row) for row in shown]
    return _columns(("twin", "cmd", "outcome", "host"), sums, placed, largest=("longest_us",)), max(0, len(rows) - MOST_ROWS)


def _links(table: pa.Table, minutes: int, hosts: Categories[str]) -> tuple[dict[str, Any], int]:
    """Return other hosts, and links themselves, in all; and the messages and losses of other hosts by time. ``peers`` are their names.

    The number is that of omitted rows.
    """
    sums = ("alive_us", "messages", "bytes", "lost", "unknown_losses", "duplicates", "rejected", "disconnects", "dropped", "states")
    by = ["realm", "link", "peer", "host"]
    table = _numbered(table, host=hosts)
    rows = aggregate(table, by, sums, largest=["spooled_max_bytes"])
    others = [row for row in rows if row["peer"] != ""]
    peers: Categories[str] = most_used(((row["peer"], row["messages"]) for row in others), MOST_PEERS, cut_text)
    own = _ranked([row for row in rows if row["peer"] == ""], "states")[:MOST_ROWS]
    shown = own + _ranked(others, "messages")[:MOST_ROWS]
    placed = [((*(cut(row[name]) for name in by[:3]), row["host"]), row) for row in shown]
    timed = table.filter(pc.invert(pc.fill_null(pc.equal(table.column("peer"), ""), False)))
    timed = with_bins(_numbered(timed, peer=peers), minutes)
    counted = ("messages", "bytes", "lost", "unknown_losses")
    bins = [((row[BIN], row["peer"], row["host"]), row) for row in aggregate(timed, [BIN, "peer", "host"], counted)]
    found = {
        "peers": peers.labels,
        "links": _columns((*by[:3], "host"), sums, placed, largest=("spooled_max_bytes",)),
        "linkTimes": _columns(("bin", "peer", "host"), counted, bins),
    }
    return found, len(rows) - len(shown)


def _ranked(rows: Rows, name: str) -> Rows:
    """Return *rows* in descending order of *name*."""
    return sorted(rows, key=lambda row: (-row[name], repr(row)))


def _columns(
    names: Sequence[str], sums: Sequence[str], rows: Sequence[tuple[tuple[Any, ...], dict[str, Any]]], largest: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """Return columns from *rows* of key values and numbers; of rows with the same key values, *sums* are added, and of *largest* the
    largest number is kept."""
    combined: dict[tuple[Any, ...], list[Any]] = {}
    for place, row in rows:
        values = combined.setdefault(place, [None] * (len(sums) + len(largest)))
        for position, name in enumerate((*sums, *largest)):
            if row[name] is not None:
                known = values[position] or 0
                values[position] = row[name] + known if name in sums else max(row[name], known)
    columns = list(zip(*((*place, *values) for place, values in combined.items()), strict=True)) or [()] * (
        len(names) + len(sums) + len(largest)
    )
    return {name: list(column) for name, column in zip((*names, *sums, *largest), columns, strict=True)}
