"""The columns that are read: those of the record, as Spark names their types. Spec: sbus-record(5)."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import StructType

from sbusd.archive.record.schema import PARTITION_SCHEMA, SCHEMA
from sbusd.pipeline.errors import SourceError

_FIELDS = (*SCHEMA, *PARTITION_SCHEMA)

_TYPES = {
    "int64": "bigint",
    "int32": "int",
    "string": "string",
    "binary": "binary",
    "bool": "boolean",
    "list<element: int64>": "array<bigint>",
}

DDL = ", ".join(f"`{field.name}` {_TYPES[str(field.type)]}" for field in _FIELDS)
"""All columns, as Spark declares them."""

_KNOWN = {field.name: field for field in _FIELDS}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the columns of *schema*, some or all of the record's, exactly as Spark wants their batches.

    Raises:
        SourceError: one is none of the record's, or of another type.
    """
    fields = []
    for wanted in schema.fields:
        known = _KNOWN.get(wanted.name)
        if known is None:
            raise SourceError(f"unknown column {wanted.name!r}: for the columns see sbus-record(5)")
        if (kind := _TYPES[str(known.type)]) != wanted.dataType.simpleString():
            raise SourceError(f"column {wanted.name!r} has the type {kind}, not {wanted.dataType.simpleString()}")
        fields.append(pa.field(known.name, known.type, nullable=wanted.nullable))
    return pa.schema(fields)
