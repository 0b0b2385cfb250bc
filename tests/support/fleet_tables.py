"""Tables of a fleet, made up without a record: many hosts over a day, with the day and the week before."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from sbus_archive.record.layout import HOUR_NS, IndexEntry
from sbus_archive.tables.hours import Hour, Manifest
from sbus_archive.tables.schema import TABLES, bucket_of
from sbus_archive.tables.storage import TableSnapshot
from tests.support.records import NOON

_KEYS = ("sensor/temp", "sensor/wind", "journal/web.service", "rpc/echo", "rpc/store", "udev/block", "app/state", "link/state", None)
_REASONS = {
    "denial": ("EACCES", "no rule allows this"),
    "quota": ("EDQUOT", "too many connections"),
    "misbehaviour": ("EPROTO", "bad packet"),
}


def fleet_hosts(count: int) -> list[str]:
    """Return the names of *count* hosts."""
    return [f"node-{number:03}" for number in range(count)]


def fleet_snapshot(
    hosts: Sequence[str], entry: IndexEntry, *, seed: int = 1, hours: int = 24, start: int = NOON, trouble: int = 1, keys: int = 8
) -> TableSnapshot:
    """Return tables of *hours* from *start*, nanoseconds since 1970. *trouble* multiplies losses, refusals and failed calls.

    *entry* is the pattern of the index entries. The last of several hosts stops after half of the time.
    """
    chance = random.Random(seed)
    rows: dict[str, list[dict[str, Any]]] = {table.name: [] for table in TABLES}
    manifests: dict[Hour, Manifest] = {}
    names = [*_KEYS, *(f"many/{number}" for number in range(max(0, keys - len(_KEYS))))][: max(2, keys)]
    for number in range(hours):
        begin = start + number * HOUR_NS
        there = [host for host in hosts if number < hours // 2 or host != hosts[-1] or len(hosts) == 1]
        for host in there:
            _add_hour(rows, chance, host, begin, trouble=trouble, keys=names)
        end = begin + HOUR_NS - 10**9
        entries = tuple(
            replace(entry, host=host, rows=500, min_ts=begin, max_ts=end, missing=0, kinds={}, payloads_cut=0) for host in there
        )
        manifests[Hour.at(begin)] = Manifest(Hour.at(begin), 1, entries)
    return TableSnapshot(manifests, {table.name: _table_of(table.name, rows[table.name]) for table in TABLES})


def _table_of(name: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Return *rows* with the columns of a table; columns without values are null."""
    (table,) = [each for each in TABLES if each.name == name]
    schema = table.arrow_schema()
    return pa.Table.from_pylist([{field: row.get(field) for field in schema.names} for row in rows], schema=schema)


def _add_hour(
    rows: dict[str, list[dict[str, Any]]], chance: random.Random, host: str, begin: int, *, trouble: int, keys: Sequence[str | None]
) -> None:
    """Add the rows of one host and hour."""
    minute = datetime.datetime.fromtimestamp(begin // 10**9 + 60 * chance.randrange(50), datetime.UTC)
    for key in chance.sample(keys, min(4, len(keys))):
        uid, messages = 1000 + chance.randrange(4) * 7, chance.randrange(20, 2000)
        counts = {"messages": messages, "bytes": messages * 70, "recipients": messages * 2, "queued": 0, "discarded": 0, "undeliverable": 3}
        rows["traffic"].append({"minute": minute, "host": host, "prefix": key, "uid": uid, **counts})
        flow = {
            "from_uid": uid,
            "prefix": key,
            "to_uid": chance.choice((1000, 1007, 0, None)),
            "deliveries": messages * 2,
            "bytes": messages,
        }
        rows["flows"].append({"host": host, **flow})
        users = {"uid": uid, "unit": "app.service", "connections": 2, "messages": messages, "bytes": messages * 70, "subscriptions": 3}
        rows["users"].append({"host": host, **users, "denials": 0, "lost": 0})
    latency = chance.randrange(200, 90_000)
    calls, failed = 100, chance.randrange(2) * trouble
    histogram = [{"bucket": bucket_of(latency // part), "calls": share} for part, share in ((1, 2), (2, 40), (4, calls - failed - 42))]
    answered = {"calls": calls, "answered": calls - failed, "errors": 0, "timeouts": 0, "unanswered": failed, "undelivered": 0}
    rows["calls"].append(
        {
            "host": host,
            "cmd": chance.choice(("echo", "store/get")),
            "caller_uid": 1000,
            **answered,
            "latency_max_us": latency,
            "latencies": histogram,
        }
    )
    if chance.random() < 0.1 * trouble:
        rows["losses"].append(
            {"minute": minute, "host": host, "cause": "lost", "uid": 1007, "events": 1, "count": chance.randrange(1, 90) * trouble}
        )
        kind = chance.choice(sorted(_REASONS))
        code, reason = _REASONS[kind]
        refusal = {"class": kind, "code": code, "reason": reason, "uid": 1014, "unit": "intruder.service", "key": "!/cred//0//vault/secret"}
        ended = {"uid": 1007, "unit": "app.service", "code": "ENOBUFS", "reason": "the queue of the client stayed full"}
        rows["disconnects"].append({"host": host, **ended, "disconnects": chance.randrange(1, 5) * trouble, "abandoned": 12 * trouble})
        rows["security"].append({"host": host, **refusal, "events": chance.randrange(1, 60) * trouble, "first": minute, "last": minute})
