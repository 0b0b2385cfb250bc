"""The columns of the record, with the type names of Spark. Spec: sbus-record(5)."""

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
"""All columns in Spark's DDL."""

_KNOWN = {field.name: field for field in _FIELDS}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the columns of *schema*, a selection of the record's, as Spark expects its batches.

    Raises:
        SourceError: a column does not exist, or has another type.
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
