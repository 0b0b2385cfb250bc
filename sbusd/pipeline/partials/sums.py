"""Computes the rows of one portion for one table: partial rows, or of a whole hour of a host those of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from sbusd.archive.record.segments import RecordReader
from sbusd.archive.tables.schema import CALLS, LINKS, RELAY
from sbusd.pipeline.partials import counts
from sbusd.pipeline.partials.calls import calls, histograms
from sbusd.pipeline.partials.columns import FOLDED, LEAST, MOST, columns_of, keys_of, partial_columns_of
from sbusd.pipeline.partials.deliveries import flows
from sbusd.pipeline.partials.link_states import links
from sbusd.pipeline.partials.portions import Portion
from sbusd.pipeline.partials.rows import folded, joined, summed

TEXT_ROWS = 1 << 16
"""Maximum number of rows whose text is in memory at once, instead of numbers: a key can have four thousand bytes."""

_ALWAYS_PARTIAL = (RELAY.name, LINKS.name)
"""Tables that Spark computes from few rows, with more than sums."""

_SUMS: Mapping[str, Callable[[RecordReader, Portion], Iterator[pa.Table]]] = {
    "traffic": counts.traffic,
    "users": counts.users,
    "flows": flows,
    "calls": calls,
    "losses": counts.losses,
    "security": counts.security,
    "disconnects": counts.disconnects,
    "relay": counts.relay,
    "links": links,
}


def is_complete(table: str, portion: Portion) -> bool:
    """Return whether the rows of *portion* are those of the table."""
    return portion.is_whole and table not in _ALWAYS_PARTIAL


def rows_of(record: RecordReader, table: str, portion: Portion) -> Iterator[pa.Table]:
    """Yield the rows of *portion* for *table*, with the columns of the table if it is complete, else those of partial rows.

    Raises:
        RecordError: a segment is missing or damaged.
    """
    found = _SUMS[table](record, portion)
    if not is_complete(table, portion):
        for rows in found:
            yield from _placed(rows, portion, partial_columns_of(table))
    elif parts := list(found):
        yield from _placed(_completed(parts, table), portion, columns_of(table))


def _completed(parts: list[pa.Table], table: str) -> pa.Table:
    """Return the rows of an hour of a host, from all its partial rows."""
    rows = _added_up(joined(parts), table) if len(parts) > 1 else parts[0]
    for column, weight in FOLDED[table]:
        fewer = folded(rows, column, weight)
        rows = rows if fewer is rows else _added_up(fewer, table)
    return histograms(rows) if table == CALLS.name else rows


def _added_up(rows: pa.Table, table: str) -> pa.Table:
    """Return *rows* added up by their key columns."""
    keys = keys_of(table)
    values = [name for name in rows.column_names if name not in keys]
    sums = [name for name in values if name not in (*LEAST, *MOST)]
    return summed(rows, keys, sums, least=[name for name in values if name in LEAST], most=[name for name in values if name in MOST])


def _placed(rows: pa.Table, portion: Portion, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield *rows* with the columns of *schema*, and with text instead of dictionary arrays."""
    place = {"date": portion.hour.date, "hour": portion.hour.hour, "host": portion.host}
    for begin in range(0, rows.num_rows, TEXT_ROWS):
        some = rows.slice(begin, TEXT_ROWS)
        constants = {name: pa.repeat(pa.scalar(value, schema.field(name).type), some.num_rows) for name, value in place.items()}
        columns = [constants[field.name] if field.name in constants else some.column(field.name).cast(field.type) for field in schema]
        yield pa.Table.from_arrays(columns, schema=schema).combine_chunks()
