"""The columns of the tables, in one place: their names, types and meaning. Spec: sbus-pipeline(8).

Every table is one row for each combination of its key columns in an hour; the other columns are sums over the record's rows of that
combination, unless their meaning says otherwise. ``date`` and ``hour`` are the folders that a row lies in.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import pyarrow as pa

VERSION = 2
"""Of the tables' columns and meaning. Tables of another version are made anew, by ``sbus-pipeline --rebuild``."""

TOP = 1000
"""Prefixes, commands and keys of a host's hour that get rows of their own. The most used do; a null stands for all others. A machine
in use has some hundreds; without a bound a user who invents keys would decide how large the tables are."""

PREFIX_SEGMENTS = 2
"""Segments of a key that make its prefix: enough for ``rpc/<cmd>``, ``journal/<unit>`` and ``!/cred``."""

CALL_SECONDS = 600
"""How long after a request a reply is looked for, across the end of the hour too. Callers wait for seconds; above ten minutes the
record of the next hour would have to be read whole for each hour."""


class Type(enum.Enum):
    """What a column holds; the value is the type's name in Spark's DDL."""

    TEXT = "string"
    COUNT = "bigint"
    TIME = "timestamp"
    HISTOGRAM = "array<struct<bucket:bigint,calls:bigint>>"


_ARROW: dict[Type, pa.DataType] = {
    Type.TEXT: pa.string(),
    Type.COUNT: pa.int64(),
    Type.TIME: pa.timestamp("us", "UTC"),
    Type.HISTOGRAM: pa.list_(pa.struct([pa.field("bucket", pa.int64()), pa.field("calls", pa.int64())])),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column; ``key`` says whether it is one of those that tell the rows of an hour apart."""

    name: str
    type: Type
    meaning: str
    key: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its rows are sorted by its key columns, in the order in which they stand."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the columns that tell rows of an hour apart."""
        return tuple(column.name for column in self.columns if column.key)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns but ``date`` and ``hour``."""
        return tuple(column.name for column in self.columns)

    def arrow_schema(self) -> pa.Schema:
        """Return the columns as Arrow reads them, each with its meaning, and ``date`` and ``hour`` behind them."""
        fields = [pa.field(column.name, _ARROW[column.type], metadata={"doc": column.meaning}) for column in self.columns]
        return pa.schema([*fields, pa.field("date", pa.string()), pa.field("hour", pa.int32())])

    def ddl(self) -> str:
        """Return the columns as Spark declares them, without ``date`` and ``hour``."""
        return ", ".join(f"{column.name} {column.type.value}" for column in self.columns)


def _key(name: str, meaning: str, kind: Type = Type.TEXT) -> Column:
    return Column(name, kind, meaning, key=True)


def _count(name: str, meaning: str) -> Column:
    return Column(name, Type.COUNT, meaning)


_HOST = _key("host", "host that recorded it")
_MINUTE = _key("minute", "start of the minute, UTC", Type.TIME)
_PREFIX = _key("prefix", "first two segments of the key, as the record writes it; null for all prefixes that have no row of their own")

TRAFFIC = Table(
    "traffic",
    "messages by minute, prefix of their keys, and publisher",
    (
        _MINUTE,
        _HOST,
        _PREFIX,
        _key("uid", "user who published; null if the record does not know", Type.COUNT),
        _count("messages", "messages"),
        _count("bytes", "bytes of their payloads, those that were not kept too"),
        _count("recipients", "connections that they were handed to or wait for: deliveries"),
        _count("queued", "of the recipients, those that had to wait"),
        _count("discarded", "connections that they were discarded for, which are not recipients"),
        _count("unheard", "messages that no connection got and none lost"),
    ),
)

USERS = Table(
    "users",
    "what each user and each of their units did",
    (
        _HOST,
        _key("uid", "user; null if the record does not know", Type.COUNT),
        _key("unit", "systemd unit; null if the record does not know"),
        _count("connections", "times it connected"),
        _count("messages", "messages it published"),
        _count("bytes", "bytes of their payloads"),
        _count("recipients", "connections that they were handed to or wait for"),
        _count("requests", "of the messages, requests of calls"),
        _count("replies", "of the messages, replies to calls"),
        _count("subscriptions", "patterns it added"),
        _count("denials", "packets that the bus refused"),
        _count("lost", "packets for it that were discarded, as it was told"),
    ),
)

FLOWS = Table(
    "flows",
    "who sent to whom, by the subscriptions in the record; all rows together are the recipients of traffic",
    (
        _HOST,
        _key("from_uid", "user who published; null if the record does not know", Type.COUNT),
        _key("from_unit", "their unit; null if the record does not know"),
        _PREFIX,
        _key("to_uid", "user who got it; null where the record does not tell who did", Type.COUNT),
        _key("to_unit", "their unit; null as in to_uid, or if the record does not know"),
        _count("deliveries", "messages, each counted for each connection that it was handed to or waits for"),
        _count("bytes", "bytes of their payloads, counted likewise"),
    ),
)

CALLS = Table(
    "calls",
    "requests, each joined with its first reply; a call belongs to the hour of its request",
    (
        _HOST,
        _key("cmd", "command; null for all commands that have no row of their own"),
        _key("caller_uid", "user who called", Type.COUNT),
        _key("caller_unit", "their unit"),
        _key("callee_uid", "user who replied; null if nobody did", Type.COUNT),
        _key("callee_unit", "their unit"),
        _count("calls", "calls: answered + timeouts + unanswered"),
        _count("answered", "calls with a reply in the time that the caller allowed"),
        _count("errors", "of the answered ones, those whose reply says that the call failed"),
        _count("timeouts", "calls with a reply that came later than the caller allowed"),
        _count("unanswered", "calls without a reply within ten minutes"),
        _count("undelivered", "of the unanswered ones, those whose request no connection got and none lost"),
        _count("latency_p50_us", "median time from request to reply, in microseconds; null if there was no reply"),
        _count("latency_p90_us", "90th percentile of it"),
        _count("latency_p99_us", "99th percentile of it"),
        _count("latency_max_us", "longest time from request to reply"),
        Column("latencies", Type.HISTOGRAM, "calls with a reply by bucket of their latency; buckets of several rows can be added up"),
    ),
)

LOSSES = Table(
    "losses",
    "what was lost, and what is missing in the record itself",
    (
        _MINUTE,
        _HOST,
        _key(
            "cause",
            "discarded: messages for a recipient; lost: the same as the recipient was told, with other packets of the bus for it; "
            "abandoned: packets that waited for a recipient when its connection ended; tap_loss: the recorder was too slow; gap: the "
            "recorder could not write; restart: the recorder had no bus",
        ),
        _key("uid", "publisher, if discarded; recipient, if lost or abandoned", Type.COUNT),
        _key("unit", "their unit"),
        _PREFIX,
        _key("reason", "why, where the record says"),
        _count("events", "rows of the record"),
        _count("count", "messages or packets that were lost, or rows that are missing; 0 where nobody can know"),
        _count("duration_us", "microseconds without a record"),
    ),
)

SECURITY = Table(
    "security",
    "what the bus refused: denials, used up quotas, misbehaviour",
    (
        _HOST,
        _key("class", "denial, quota or misbehaviour"),
        _key("code", "code of the error that the client was told"),
        _key("reason", "its words; null for all that have no row of their own"),
        _key("uid", "user who was refused", Type.COUNT),
        _key("unit", "their unit"),
        _key("key", "key or pattern that it was about; null if none, and for all keys that have no row of their own"),
        _count("events", "refusals"),
        Column("first", Type.TIME, "time of the first"),
        Column("last", Type.TIME, "time of the last"),
    ),
)

RELAY = Table(
    "relay",
    "attempts to hand calls to other hosts",
    (
        _HOST,
        _key("twin", "number of the other host", Type.COUNT),
        _key("cmd", "command; null for all commands that have no row of their own"),
        _key("outcome", "code of the attempt's outcome"),
        _count("attempts", "attempts"),
        _count("retries", "of the attempts, those that were not the first"),
        _count("calls", "different calls among them"),
        _count("longest_us", "longest attempt, in microseconds"),
    ),
)

TABLES = (TRAFFIC, USERS, FLOWS, CALLS, LOSSES, SECURITY, RELAY)
"""All tables, as the manual orders them."""
