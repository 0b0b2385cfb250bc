"""The columns of the tables: names, types and meaning; and the latency buckets of their histograms. Spec: sbus-pipeline(8)."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

VERSION = 1
"""Version of the columns and their meaning. ``sbus-pipeline --rebuild`` recomputes tables of another version."""

TOP = 1000
"""Number of prefixes, commands and keys with rows of their own, per host and hour: the most used. Null is for all others. A machine has a
few hundred; the limit bounds the size of the tables if a user invents keys."""

PREFIX_SEGMENTS = 2
"""Number of segments in the prefix of a key: enough for ``rpc/<cmd>``, ``journal/<unit>`` and ``!/cred``."""

CALL_SECONDS = 600
"""Maximum time between request and reply, also across the end of the hour. Callers wait for seconds; with a longer time, each hour would
need more of the record of the next hour."""

LATENCY_STEPS = 32
"""Equal latency buckets per power of two, as in HdrHistogram by Gil Tene: a percentile is at most 3.2 % too high."""

LINK_SECONDS = 600
"""Maximum time from the end of an hour to the state that ends a difference which begins in the hour. It equals :data:`CALL_SECONDS`,
because both search the same segments."""

_STEP_BITS = LATENCY_STEPS.bit_length() - 1


class Type(enum.Enum):
    """The type of a column; the value is its name in Spark's DDL."""

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
    """One column; ``key`` says whether it is a key column."""

    name: str
    type: Type
    meaning: str
    key: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table; its rows are sorted by its key columns, in order."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the key columns, which identify a row of an hour."""
        return tuple(column.name for column in self.columns if column.key)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns except ``date`` and ``hour``."""
        return tuple(column.name for column in self.columns)

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema: the columns with their meaning, then ``date`` and ``hour``."""
        fields = [pa.field(column.name, _ARROW[column.type], metadata={"doc": column.meaning}) for column in self.columns]
        return pa.schema([*fields, pa.field("date", pa.string()), pa.field("hour", pa.int32())])


def _key(name: str, meaning: str, kind: Type = Type.TEXT) -> Column:
    return Column(name, kind, meaning, key=True)


def _count(name: str, meaning: str) -> Column:
    return Column(name, Type.COUNT, meaning)


_HOST = _key("host", "host that recorded the rows")
_MINUTE = _key("minute", "start of the minute, UTC", Type.TIME)
_PREFIX = _key("prefix", "first two segments of the key, escaped as in sbus-record(5); null for all prefixes without a row of their own")

TRAFFIC = Table(
    "traffic",
    "messages by minute, key prefix and publisher",
    (
        _MINUTE,
        _HOST,
        _PREFIX,
        _key("uid", "user id of the publisher; null if unknown", Type.COUNT),
        _count("messages", "number of messages"),
        _count("bytes", "bytes of their complete payloads, including payloads that were not kept"),
        _count("recipients", "deliveries: connections that the messages were delivered to or queued for"),
        _count("queued", "deliveries that were queued first"),
        _count("discarded", "connections that the messages were discarded for; not included in recipients"),
        _count("undeliverable", "messages that no connection received or lost"),
    ),
)

USERS = Table(
    "users",
    "activity of each user and unit",
    (
        _HOST,
        _key("uid", "user id; null if unknown", Type.COUNT),
        _key("unit", "systemd unit; null if unknown"),
        _count("connections", "new connections"),
        _count("messages", "messages published"),
        _count("bytes", "bytes of their complete payloads"),
        _count("recipients", "deliveries of these messages"),
        _count("requests", "messages that are requests of calls"),
        _count("replies", "messages that are replies to calls"),
        _count("subscriptions", "subscriptions added"),
        _count("denials", "packets that the bus refused"),
        _count("lost", "packets discarded for its connections, as reported in loss notices"),
    ),
)

FLOWS = Table(
    "flows",
    "deliveries from publisher to recipient, derived from the subscriptions in the record; their sum equals recipients in traffic",
    (
        _HOST,
        _key("from_uid", "user id of the publisher; null if unknown", Type.COUNT),
        _key("from_unit", "systemd unit of the publisher; null if unknown"),
        _PREFIX,
        _key("to_uid", "user id of the recipient; null if the record does not identify the recipient", Type.COUNT),
        _key("to_unit", "systemd unit of the recipient; null if unknown, or as for to_uid"),
        _count("deliveries", "messages, counted once for each connection that they were delivered to or queued for"),
        _count("bytes", "bytes of their complete payloads, counted in the same way"),
    ),
)

CALLS = Table(
    "calls",
    "requests, each joined with its first reply; a call belongs to the hour of its request",
    (
        _HOST,
        _key("cmd", "command; null for all commands without a row of their own"),
        _key("caller_uid", "user id of the caller", Type.COUNT),
        _key("caller_unit", "systemd unit of the caller"),
        _key("callee_uid", "user id of the service that replied; null if there was no reply", Type.COUNT),
        _key("callee_unit", "systemd unit of the service that replied"),
        _count("calls", "number of calls: answered + timeouts + unanswered"),
        _count("answered", "calls with a reply within the time limit of the caller"),
        _count("errors", "answered calls whose reply reports an error"),
        _count("timeouts", "calls with a reply after the time limit of the caller"),
        _count("unanswered", "calls without a reply within ten minutes"),
        _count("undelivered", "unanswered calls whose request no connection received or lost"),
        _count("latency_p50_us", "median time from request to reply, in microseconds; null if there was no reply"),
        _count("latency_p90_us", "90th percentile of the same time, in microseconds"),
        _count("latency_p99_us", "99th percentile of the same time, in microseconds"),
        _count("latency_max_us", "maximum of the same time, in microseconds"),
        Column("latencies", Type.HISTOGRAM, "histogram: calls with a reply, by latency bucket; the buckets of several rows can be added"),
    ),
)

LOSSES = Table(
    "losses",
    "messages that were lost, and rows that are missing in the record",
    (
        _MINUTE,
        _HOST,
        _key(
            "cause",
            "discarded: messages discarded for a recipient; lost: the same losses as reported to the recipient, with lost packets of the "
            "bus itself; abandoned: packets still queued when the connection of the recipient ended; tap_loss: the recorder was too slow; "
            "gap: the recorder could not write; restart: the recorder had no connection to the bus",
        ),
        _key("uid", "user id of the publisher for discarded, of the recipient for lost and abandoned", Type.COUNT),
        _key("unit", "systemd unit of that user"),
        _PREFIX,
        _key("reason", "reason, if the record has one"),
        _count("events", "number of rows of the record"),
        _count("count", "lost messages or packets, or missing rows; 0 if the number is unknown"),
        _count("duration_us", "time without recording, in microseconds"),
    ),
)

SECURITY = Table(
    "security",
    "requests that the bus refused: denials, exceeded quotas, misbehaviour",
    (
        _HOST,
        _key("class", "denial (EACCES, EPERM), quota (EDQUOT, EMFILE) or misbehaviour (all others)"),
        _key("code", "error code sent to the client"),
        _key("reason", "error text sent to the client; null for all texts without a row of their own"),
        _key("uid", "user id of the client", Type.COUNT),
        _key("unit", "systemd unit of the client"),
        _key("key", "key or pattern that was refused; null if there is none, and for all keys without a row of their own"),
        _count("events", "number of refusals"),
        Column("first", Type.TIME, "time of the first refusal"),
        Column("last", Type.TIME, "time of the last refusal"),
    ),
)

DISCONNECTS = Table(
    "disconnects",
    "connections that ended, by user, unit and reason",
    (
        _HOST,
        _key("uid", "user id of the client; null if unknown", Type.COUNT),
        _key("unit", "systemd unit of the client; null if unknown"),
        _key("code", "error code with which the bus disconnected the client; null if the client closed the connection or got none"),
        _key("reason", "error text of the same; null for all texts without a row of their own"),
        _count("disconnects", "number of connections that ended"),
        _count("abandoned", "packets that were still queued for these connections"),
    ),
)

RELAY = Table(
    "relay",
    "attempts to forward calls to remote hosts",
    (
        _HOST,
        _key("twin", "number of the remote host", Type.COUNT),
        _key("cmd", "command; null for all commands without a row of their own"),
        _key("outcome", "code of the outcome"),
        _count("attempts", "number of attempts"),
        _count("retries", "attempts after the first one"),
        _count("calls", "number of different calls"),
        _count("longest_us", "longest attempt, in microseconds"),
    ),
)

LINKS = Table(
    "links",
    "other hosts, from the differences of successive states of the link; a difference belongs to the minute in which it begins",
    (
        _MINUTE,
        _HOST,
        _key("realm", "realm of the link"),
        _key("link", "name of this host in the realm"),
        _key("peer", "other host; empty for the link itself; null for all hosts without a row of their own"),
        _count("alive_us", "time for which the other host was alive, or the network was connected, in microseconds"),
        _count("messages", "messages received from the other host"),
        _count("bytes", "bytes of these messages"),
        _count("lost", "messages of the other host that were lost"),
        _count("unknown_losses", "losses of an unknown number of messages"),
        _count("duplicates", "messages that arrived again or too late, and were not published"),
        _count("rejected", "frames, messages and patterns that the link rejected, or that were rejected by the network or the bus"),
        _count("disconnects", "how often the heartbeats of the other host stopped, or the link lost the network"),
        _count("dropped", "messages that the link dropped before they reached the network or the bus; 0 for other hosts"),
        _count("spooled_max_bytes", "maximum size of the spool in the states of the minute; null without a state, and for other hosts"),
        _count("states", "states in the minute; 0 for other hosts"),
    ),
)

TABLES = (TRAFFIC, USERS, FLOWS, CALLS, LOSSES, SECURITY, DISCONNECTS, RELAY, LINKS)
"""All tables, in the order of the manual."""


def bucket_of(latency: int) -> int:
    """Return the bucket of *latency*, at least 0; each value below 64 has its own."""
    shift = max(0, latency.bit_length() - 1 - _STEP_BITS)
    return (shift << _STEP_BITS) + (latency >> shift)


def upper_bound(bucket: int) -> int:
    """Return the largest latency in *bucket*."""
    shift = max(0, (bucket >> _STEP_BITS) - 1)
    return ((bucket - (shift << _STEP_BITS) + 1) << shift) - 1


def percentile(histogram: Iterable[tuple[int, int]], percent: int, longest: int) -> int | None:
    """Return the upper bound of the bucket of a percentile (nearest rank), at most *longest*, the longest latency; None without values.

    *histogram* has pairs of bucket and count, in any order; a bucket may occur several times. *percent* is 1 to 100.
    """
    pairs = sorted(histogram)
    rank = -(-sum(count for _, count in pairs) * percent // 100)
    seen = 0
    for bucket, count in pairs:
        seen += count
        if count and seen >= rank:
            return min(upper_bound(bucket), longest)
    return None
