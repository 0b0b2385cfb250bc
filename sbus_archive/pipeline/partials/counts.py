"""Partial rows of the tables that count and sum rows: ``traffic``, ``users``, ``losses``, ``security``, ``disconnects``, ``relay``."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from sbus.protocol.errors import ErrorCode
from sbus_archive.pipeline.partials.portions import Portion
from sbus_archive.pipeline.partials.rows import (
    encoded_array,
    flag,
    is_value,
    minutes,
    ones,
    prefixes,
    read_rows,
    summed,
    undeliverable,
    with_columns,
)
from sbus_archive.record.schema import Role, RowKind
from sbus_archive.record.segments import RecordReader

_BUS = 0
"""The connection number of the bus itself."""
_CAUSES = {RowKind.MESSAGE: "discarded", RowKind.LOSS: "lost", RowKind.DISCONNECT: "abandoned"}
"""Causes of kinds whose name differs from the cause."""

_LOST = [RowKind.MESSAGE, RowKind.LOSS, RowKind.DISCONNECT, RowKind.TAP_LOSS, RowKind.GAP, RowKind.RESTART]
_ACTIVE = [RowKind.MESSAGE, RowKind.CONNECT, RowKind.SUBSCRIBE, RowKind.DENIAL, RowKind.LOSS]
_DENIALS = (ErrorCode.EACCES.name, ErrorCode.EPERM.name)
_QUOTAS = (ErrorCode.EDQUOT.name, ErrorCode.EMFILE.name)


def traffic(record: RecordReader, portion: Portion) -> Iterator[pa.Table]:
    """Yield messages by minute, prefix and user."""
    columns = ["ts", "key", "uid", "payload_bytes", "recipients", "queued", "discarded"]
    for rows in read_rows(record, portion.segments, columns, pc.field("kind") == RowKind.MESSAGE.value):
        counted = with_columns(
            rows,
            {
                "minute": minutes(rows),
                "prefix": prefixes(encoded_array(rows.column("key"))),
                "messages": ones(rows),
                "bytes": rows.column("payload_bytes"),
                "undeliverable": undeliverable(rows),
            },
        )
        yield summed(counted, ["minute", "prefix", "uid"], ["messages", "bytes", "recipients", "queued", "discarded", "undeliverable"])


def users(record: RecordReader, portion: Portion) -> Iterator[pa.Table]:
    """Yield the activity of each user and unit."""
    columns = ["kind", "uid", "unit", "call_role", "payload_bytes", "recipients", "lost"]
    wanted = pc.field("kind").isin([kind.value for kind in _ACTIVE]) & ((pc.field("conn") != _BUS) | pc.field("conn").is_null())
    for rows in read_rows(record, portion.segments, columns, wanted):
        counted = with_columns(rows, {"rows": ones(rows), "denials": pc.fill_null(rows.column("lost"), 1)})
        # The sums of each kind are few, so that the rest costs nothing.
        by_kind = summed(counted, ["kind", "call_role", "uid", "unit"], ["rows", "payload_bytes", "recipients", "lost", "denials"])
        kinds, roles = by_kind.column("kind"), by_kind.column("call_role")
        is_message = is_value(kinds, RowKind.MESSAGE.value)
        sources = {
            "connections": ("rows", is_value(kinds, RowKind.CONNECT.value)),
            "messages": ("rows", is_message),
            "bytes": ("payload_bytes", is_message),
            "recipients": ("recipients", is_message),
            "requests": ("rows", pc.and_(is_message, is_value(roles, Role.REQUEST.value))),
            "replies": ("rows", pc.and_(is_message, is_value(roles, Role.REPLY.value))),
            "subscriptions": ("rows", is_value(kinds, RowKind.SUBSCRIBE.value)),
            "denials": ("denials", is_value(kinds, RowKind.DENIAL.value)),
            "lost": ("lost", is_value(kinds, RowKind.LOSS.value)),
        }
        chosen = {name: pc.if_else(condition, by_kind.column(source), 0) for name, (source, condition) in sources.items()}
        yield summed(with_columns(by_kind, chosen), ["uid", "unit"], sources)


def losses(record: RecordReader, portion: Portion) -> Iterator[pa.Table]:
    """Yield losses by minute and cause."""
    columns = ["ts", "kind", "uid", "unit", "key", "reason", "discarded", "lost", "duration"]
    kind = pc.field("kind")
    is_lost = (
        ((kind == RowKind.MESSAGE.value) & (pc.field("discarded") > 0))
        | ((kind == RowKind.DISCONNECT.value) & (pc.field("lost") > 0))
        | kind.isin([each.value for each in _LOST if each not in (RowKind.MESSAGE, RowKind.DISCONNECT)])
    )
    for rows in read_rows(record, portion.segments, columns, is_lost):
        kinds = rows.column("kind").cast(pa.string())
        is_message = pc.equal(kinds, RowKind.MESSAGE.value)
        is_of_someone = pc.is_in(kinds, pa.array([each.value for each in _CAUSES]))
        causes = kinds
        for each, cause in _CAUSES.items():
            causes = pc.if_else(pc.equal(kinds, each.value), cause, causes)
        text = {name: rows.column(name).cast(pa.string()) for name in ("unit", "reason")}
        counted = with_columns(
            rows,
            {
                "minute": minutes(rows),
                "cause": causes,
                "uid": pc.if_else(is_of_someone, rows.column("uid"), None),
                "unit": pc.if_else(is_of_someone, text["unit"], None),
                "prefix": pc.if_else(is_message, prefixes(encoded_array(rows.column("key"))).cast(pa.string()), None),
                "reason": pc.if_else(is_message, None, text["reason"]),
                "events": ones(rows),
                "count": pc.if_else(is_message, rows.column("discarded").cast(pa.int64()), rows.column("lost")),
                "duration_us": pc.divide(rows.column("duration"), 1000),
            },
        )
        yield summed(counted, ["minute", "cause", "uid", "unit", "prefix", "reason"], ["events", "count", "duration_us"])


def security(record: RecordReader, portion: Portion) -> Iterator[pa.Table]:
    """Yield refusals by class, code, reason, user, unit and key."""
    columns = ["ts", "code", "reason", "uid", "unit", "key", "lost"]
    for rows in read_rows(record, portion.segments, columns, pc.field("kind") == RowKind.DENIAL.value):
        codes = rows.column("code").cast(pa.string())
        is_quota = pc.is_in(codes, pa.array(_QUOTAS))
        times = pc.divide(rows.column("ts"), 1000).cast(pa.timestamp("us", "UTC"))
        counted = with_columns(
            rows,
            {
                "class": pc.if_else(pc.is_in(codes, pa.array(_DENIALS)), "denial", pc.if_else(is_quota, "quota", "misbehaviour")),
                "events": pc.fill_null(rows.column("lost"), 1),
                "first": times,
                "last": times,
            },
        )
        yield summed(counted, ["class", "code", "reason", "uid", "unit", "key"], ["events"], least=["first"], most=["last"])


def disconnects(record: RecordReader, portion: Portion) -> Iterator[pa.Table]:
    """Yield ended connections by user, unit, code and reason."""
    columns = ["uid", "unit", "code", "reason", "lost"]
    for rows in read_rows(record, portion.segments, columns, pc.field("kind") == RowKind.DISCONNECT.value):
        counted = with_columns(rows, {"disconnects": ones(rows), "abandoned": rows.column("lost")})
        yield summed(counted, ["uid", "unit", "code", "reason"], ["disconnects", "abandoned"])


def relay(record: RecordReader, portion: Portion) -> Iterator[pa.Table]:
    """Yield attempts to forward calls to other hosts, by call."""
    columns = ["twin", "call_cmd", "code", "call_id", "attempt", "duration"]
    for rows in read_rows(record, portion.segments, columns, pc.field("kind") == RowKind.RELAY.value):
        counted = with_columns(
            rows,
            {
                "cmd": rows.column("call_cmd"),
                "outcome": rows.column("code"),
                "attempts": ones(rows),
                "retries": flag(pc.greater(rows.column("attempt"), 1)),
                "longest_us": pc.divide(rows.column("duration"), 1000),
            },
        )
        yield summed(counted, ["twin", "cmd", "outcome", "call_id"], ["attempts", "retries"], most=["longest_us"])
