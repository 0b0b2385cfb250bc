"""Rows of segments as Arrow batches for Spark, with selected columns and rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sbusd.archive.record.index import IndexEntry
from sbusd.archive.record.key_text import key_bytes
from sbusd.archive.record.reader import RecordReader
from sbusd.archive.record.schema import SCHEMA
from sbusd.pipeline.source.filters import Condition
from sbusd.protocol.keys import KeySpace

BATCH_ROWS = 1 << 16
"""Rows of a batch. Spark is fastest with 64 to 256 thousand; with payloads of a few hundred bytes that is 20 MiB."""

_UNGUARDED = KeySpace(is_guarded=False)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Selects rows that match all ``conditions``, and whose key matches the pattern ``key``."""

    key: bytes = b""
    conditions: tuple[Condition, ...] = ()

    @property
    def columns(self) -> set[str]:
        """The columns of the record that the filter needs."""
        return {each.column for each in self.conditions if not each.is_of_folders} | ({"key"} if self.key else set())

    @property
    def expression(self) -> pc.Expression | None:
        """The conditions on rows as an Arrow expression, None if there are none."""
        found = [each.expression() for each in self.conditions if not each.is_of_folders]
        return reduce(and_, found) if found else None

    def may_have(self, entry: IndexEntry) -> bool:
        """Return whether the segment of *entry* can have matching rows."""
        return all(condition.may_hold(entry) for condition in self.conditions)


def read_batches(root: Path, entry: IndexEntry, schema: pa.Schema, selection: RowFilter) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the segment of *entry* that match *selection*, in the order of the file, with the columns of *schema*.

    Raises:
        SegmentGoneError: it does not exist.
        RecordError: it is damaged.
    """
    if selection.may_have(entry):
        for batch in RecordReader(root).scan(
            entry, _columns(schema, {"key"} if selection.key else set()), selection.expression, BATCH_ROWS
        ):
            yield from _taken(batch, entry, schema, selection.key)


def read_slice(root: Path, entry: IndexEntry, schema: pa.Schema, selection: RowFilter, span: tuple[int, int]) -> Iterator[pa.RecordBatch]:
    """As :func:`read_batches`, for the rows from the first number of *span* to the last (exclusive)."""
    if not selection.may_have(entry):
        return
    (first, last), position, wanted = span, 0, selection.expression
    # Rows are counted before they are filtered.
    for batch in RecordReader(root).scan(entry, _columns(schema, selection.columns), None, BATCH_ROWS):
        begin, end = max(first - position, 0), min(last - position, batch.num_rows)
        position += batch.num_rows
        if begin < end:
            part = pa.Table.from_batches([batch.slice(begin, end - begin)])
            for each in (part if wanted is None else part.filter(wanted)).to_batches():
                yield from _taken(each, entry, schema, selection.key)
        if position >= last:
            return


def matches(pattern: bytes, key: str | None) -> bool:
    """Return whether *pattern* matches *key*, text of the record; the empty pattern also matches rows without a key."""
    return not pattern or (key is not None and _UNGUARDED.matches(pattern, key_bytes(key)))


def _columns(schema: pa.Schema, more: set[str]) -> list[str]:
    """Return the columns of the record to read for *schema* and *more*."""
    return [name for name in SCHEMA.names if name in schema.names or name in more]


def _taken(batch: pa.RecordBatch, entry: IndexEntry, schema: pa.Schema, pattern: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *batch* whose key matches *pattern*, with the columns of *schema*; nothing if there are none."""
    if pattern:
        # A segment has far fewer keys than rows.
        keys = batch.column("key")
        distinct = [key for key in pc.unique(keys).to_pylist() if matches(pattern, key)]
        batch = batch.filter(pc.is_in(keys, pa.array(distinct, pa.string())))
    if batch.num_rows:
        yield _with_columns(batch, schema, {"date": entry.date, "hour": entry.hour, "host": entry.host})


def _with_columns(batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, str | int]) -> pa.RecordBatch:
    """Return the columns of *schema*, from *batch* or as *constants*."""
    columns = [
        pa.repeat(pa.scalar(constants[field.name], field.type), batch.num_rows) if field.name in constants else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
