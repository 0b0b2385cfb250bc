"""Reads rows of segments into Arrow tables, and sums them. Text is in dictionary arrays, because comparing numbers is faster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sbus_archive.record.layout import IndexEntry
from sbus_archive.record.schema import SCHEMA
from sbus_archive.record.segments import RecordReader
from sbus_archive.tables.schema import PREFIX_SEGMENTS, TOP

BATCH_ROWS = 1 << 20
"""Maximum number of rows that are read at once: a row group of a segment."""

_USES = 8
"""How often the values of a dictionary are used on average, at least, unless it is compacted."""

_MINUTE_NS = 60 * 10**9
_ENCODED = ("kind", "key", "unit", "call_role", "call_cmd", "code", "reason")

# RE2 needs no backtracking, so a key of a hostile client does not make it slow.
_AFTER_PREFIX = rf"(?s)^((?:[^/]*/){{{PREFIX_SEGMENTS - 1}}}[^/]*)/.*$"


def read_rows(record: RecordReader, entries: Iterable[IndexEntry], columns: Sequence[str], wanted: pc.Expression) -> Iterator[pa.Table]:
    """Yield *columns* of the rows of *entries* that match *wanted*, in tables with rows and one chunk.

    Columns of text are dictionary arrays. Raises RecordError: a segment is damaged.
    """
    encoded = [name for name in _ENCODED if name in columns]
    for entry in entries:
        for batch in record.scan(entry, columns, wanted, BATCH_ROWS, encoded=encoded):
            if batch.num_rows:
                # Without what the schema says about nulls, which computed columns do not have.
                yield compacted(pa.table({name: batch.column(name) for name in columns}))


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of *tables*, at least one, all with the same columns: one chunk, in which each column has one dictionary."""
    if len(tables) == 1:
        return tables[0].combine_chunks()
    whole = pa.concat_tables(tables)
    columns = (whole.column(name) for name in whole.column_names)
    # Arrow's own unify_dictionaries() uses the undefined numbers that a dictionary array can have in place of nulls, and crashes.
    made = [_with_one_dictionary(column) if isinstance(column.type, pa.DictionaryType) else column.combine_chunks() for column in columns]
    return pa.table(dict(zip(whole.column_names, made, strict=True)))


def _with_one_dictionary(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return a column of dictionary arrays as one."""
    parts = [_compact(part) for part in column.chunks if isinstance(part, pa.DictionaryArray) and len(part)]
    if not parts:
        return _compact(encoded_array(column))
    dictionary = pc.unique(pa.concat_arrays([part.dictionary for part in parts]))
    numbers_of_parts = [pc.index_in(part.dictionary, dictionary).take(part.indices) for part in parts]
    return pa.DictionaryArray.from_arrays(pa.concat_arrays(numbers_of_parts), dictionary)


def compacted(rows: pa.Table) -> pa.Table:
    """Return *rows*, of one chunk, with dictionaries that have few values which no row uses: those of rows that were left out."""
    columns = {
        name: encoded_array(rows.column(name)) for name in rows.column_names if isinstance(rows.column(name).type, pa.DictionaryType)
    }
    large = {name: _compact(column) for name, column in columns.items() if len(column.dictionary) > rows.num_rows // _USES}
    return pa.table({name: large.get(name, rows.column(name)) for name in rows.column_names}) if large else rows


def _compact(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return *column* with the values that it uses only."""
    used = pc.unique(column.indices).drop_null()
    return pa.DictionaryArray.from_arrays(pc.index_in(column.indices, used), column.dictionary.take(used))


def no_rows(columns: Sequence[str]) -> pa.Table:
    """Return a table of *columns* without rows."""
    types = {name: SCHEMA.field(name).type for name in columns}
    encoded = [pa.field(name, pa.dictionary(pa.int32(), kind) if name in _ENCODED else kind) for name, kind in types.items()]
    return pa.schema(encoded).empty_table()


def summed(
    rows: pa.Table, keys: Sequence[str], sums: Iterable[str] = (), *, least: Iterable[str] = (), most: Iterable[str] = ()
) -> pa.Table:
    """Return the sums of *rows* by *keys*, and the minimum and maximum of other columns, under the names of the columns.

    A sum of nulls is 0. Keys of dictionary arrays stay dictionary arrays.
    """
    aggregations = [*((name, "sum") for name in sums), *((name, "min") for name in least), *((name, "max") for name in most)]
    found = rows.group_by(list(keys), use_threads=False).aggregate(aggregations)
    columns: dict[str, pa.ChunkedArray] = {name: found.column(name) for name in keys}
    for name, function in aggregations:
        column = found.column(f"{name}_{function}")
        columns[name] = pc.fill_null(column, 0) if function == "sum" else column
    return pa.table(columns)


def folded(rows: pa.Table, column: str, weight: str) -> pa.Table:
    """Return *rows* of one hour and host with null in *column* unless its value is among the heaviest. Sum the rows again afterwards."""
    values = heaviest(rows, column, weight)
    return rows if values is None else with_columns(rows, {column: only(rows.column(column), values)})


def heaviest(rows: pa.Table, column: str, weight: str) -> pa.Array | None:
    """Return the :data:`TOP` values of *column* with the largest sums of *weight*, among equal ones the lowest text; None if there are no
    others."""
    sums = summed(rows, [column], [weight])
    named = sums.filter(pc.is_valid(sums.column(column)))
    if named.num_rows <= TOP:
        return None
    text = with_columns(named, {column: named.column(column).cast(pa.string())})
    return text.sort_by([(weight, "descending"), (column, "ascending")]).slice(0, TOP).column(column).combine_chunks()


def only(column: pa.ChunkedArray, values: pa.Array) -> pa.ChunkedArray | pa.DictionaryArray:
    """Return *column* with null in place of all but *values*."""
    if not isinstance(column.type, pa.DictionaryType):
        return pc.if_else(pc.is_in(column, values), column, None)
    # The text of each row could be more than an array can have.
    encoded = encoded_array(column)
    is_kept = pc.is_in(encoded.dictionary, values).take(encoded.indices)
    return pa.DictionaryArray.from_arrays(pc.if_else(pc.fill_null(is_kept, False), encoded.indices, None), encoded.dictionary)


def with_columns(rows: pa.Table, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    """Return *rows* with more *columns*, or with others of the same name."""
    kept = [name for name in rows.column_names if name not in columns]
    return pa.table({**{name: rows.column(name) for name in kept}, **columns})


def ones(rows: pa.Table) -> pa.Array:
    """Return a column of ones, which are summed to count rows."""
    return pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)


def numbers(rows: pa.Table) -> pa.Array:
    """Return the numbers of the rows, from 0."""
    return pc.subtract(pc.cumulative_sum(ones(rows)), 1)


def is_value(column: pa.ChunkedArray, value: object) -> pa.ChunkedArray:
    """Return whether each value of *column* equals *value*; null does not."""
    return pc.fill_null(pc.equal(column, value), False)


def flag(condition: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return 1 where *condition* is true, else 0."""
    return pc.fill_null(condition, False).cast(pa.int64())


def minutes(rows: pa.Table) -> pa.ChunkedArray:
    """Return the start of the minute of the column ``ts``."""
    starts = pc.multiply(pc.divide(rows.column("ts"), _MINUTE_NS), _MINUTE_NS // 1000)
    return starts.cast(pa.timestamp("us", "UTC"))


def undeliverable(rows: pa.Table) -> pa.ChunkedArray:
    """Return 1 for messages that no connection received or lost, else 0."""
    return flag(pc.and_(pc.equal(rows.column("recipients"), 0), pc.equal(pc.fill_null(rows.column("discarded"), 0), 0)))


def encoded_array(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return a dictionary array of one chunk as such."""
    whole = column.combine_chunks()
    if not isinstance(whole, pa.DictionaryArray):
        raise TypeError(f"not a dictionary array: {whole.type}")
    return whole


def prefixes(keys: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return the prefix of each key: its first :data:`PREFIX_SEGMENTS` segments."""
    cut = pc.replace_substring_regex(keys.dictionary, _AFTER_PREFIX, r"\1").dictionary_encode()
    return pa.DictionaryArray.from_arrays(cut.indices.take(keys.indices), cut.dictionary)
