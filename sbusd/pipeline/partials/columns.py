"""The columns of the rows that Arrow computes for Spark: those of the table, except for the tables named here."""

from __future__ import annotations

import pyarrow as pa

from sbusd.archive.record.schema import PARTITION_SCHEMA
from sbusd.archive.tables.schema import CALLS, LINKS, RELAY, TABLES
from sbusd.pipeline.partials import link_states
from sbusd.pipeline.partials.calls import PARTIES, SUMS

FOLDED = {
    "traffic": (("prefix", "messages"),),
    "users": (),
    "flows": (("prefix", "deliveries"),),
    "calls": (("cmd", "calls"),),
    "losses": (("prefix", "count"),),
    "security": (("key", "events"), ("reason", "events")),
    "disconnects": (("reason", "disconnects"),),
    "relay": (("cmd", "attempts"),),
}
"""Columns whose values clients can invent, with the column by which the heaviest are chosen: the others share a row."""

LEAST, MOST = ("first",), ("last", "longest", "longest_us")
"""Columns of which the minimum or the maximum is taken, instead of the sum."""

_TYPES = {"int64": "bigint", "int32": "int", "string": "string", "bool": "boolean", "timestamp[us, tz=UTC]": "timestamp"}

_PARTIES = [pa.field(name, pa.int64() if name.endswith("_uid") else pa.string()) for name in PARTIES]

_BY_BUCKET = pa.schema([*_PARTIES, *(pa.field(name, pa.int64()) for name in ("bucket", *SUMS, "longest"))])
"""Calls by latency bucket, null without a reply."""

_BY_CALL = pa.schema(
    [
        pa.field("twin", pa.int64()),
        *(pa.field(name, pa.string()) for name in ("cmd", "outcome")),
        *(pa.field(name, pa.int64()) for name in ("call_id", "attempts", "retries", "longest_us")),
    ]
)
"""Attempts by call, so that different calls can be counted."""

_PARTIAL = {CALLS.name: _BY_BUCKET, RELAY.name: _BY_CALL, LINKS.name: link_states.SCHEMA}


def columns_of(table: str) -> pa.Schema:
    """Return the columns of *table* with ``date``, ``hour`` and ``host``; percentiles are not among them."""
    (columns,) = (each.arrow_schema() for each in TABLES if each.name == table)
    return _placed([pa.field(each.name, each.type) for each in columns if not each.name.startswith("latency_p")])


def partial_columns_of(table: str) -> pa.Schema:
    """Return the columns of partial rows for *table*, with ``date``, ``hour`` and ``host``."""
    return _placed(list(_PARTIAL[table])) if table in _PARTIAL else columns_of(table)


def keys_of(table: str) -> list[str]:
    """Return the columns of partial rows that identify one of an hour and host."""
    if table == CALLS.name:
        return [*PARTIES, "bucket"]
    return [name for each in TABLES if each.name == table for name in each.keys if name not in PARTITION_SCHEMA.names]


def ddl_of(schema: pa.Schema) -> str:
    """Return *schema* in Spark's DDL."""
    return ", ".join(f"`{field.name}` {_name_of(field.type)}" for field in schema)


def _placed(fields: list[pa.Field]) -> pa.Schema:
    """Return *fields* after those of the place."""
    places = [pa.field(each.name, each.type) for each in PARTITION_SCHEMA]
    return pa.schema([*places, *(field for field in fields if field.name not in PARTITION_SCHEMA.names)])


def _name_of(kind: pa.DataType) -> str:
    """Return Spark's name of a type."""
    if isinstance(kind, pa.ListType):
        return f"array<{_name_of(kind.value_type)}>"
    if isinstance(kind, pa.StructType):
        return f"struct<{','.join(f'{field.name}:{_name_of(field.type)}' for field in kind)}>"
    return _TYPES[str(kind)]
