"""Reads published tables without Spark: whole hours."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sbusd.archive.errors import TablesError
from sbusd.archive.tables.hours import Hour, Manifest, read_manifests
from sbusd.archive.tables.publication import Part, finish_publication, is_interrupted, locked
from sbusd.archive.tables.schema import TABLES, Table


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """All tables at one moment; ``tables`` by name, rows ordered by hour."""

    manifests: dict[Hour, Manifest]
    tables: dict[str, pa.Table]


def read_tables(root: Path, *, since: Hour | None = None, until: Hour | None = None, names: Collection[str] | None = None) -> TableSnapshot:
    """Return the tables *names* under *root* (None: all), from the hour *since* to the hour *until*, inclusive.

    Raises:
        TablesError: there are no tables, a publication was interrupted and this user cannot finish it, or a file is damaged.
    """
    _finish_what_was_begun(root)
    with locked(root, shared=True):
        manifests = {
            hour: manifest
            for hour, manifest in read_manifests(root).items()
            if (since is None or since <= hour) and (until is None or hour <= until)
        }
        chosen = [table for table in TABLES if names is None or table.name in names]
        return TableSnapshot(manifests, {table.name: _read_table(root, table, manifests) for table in chosen})


def _finish_what_was_begun(root: Path) -> None:
    """Finish an interrupted publication."""
    if is_interrupted(root):
        try:
            finish_publication(root)
        except (OSError, TablesError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise TablesError(root, f"publication of the tables was interrupted: {reason}. Run sbus-pipeline again") from None


def _read_table(root: Path, table: Table, hours: Collection[Hour]) -> pa.Table:
    """Return the rows of *hours* of one table."""
    schema = table.arrow_schema()
    parts = [_read_hour(path, table, hour, schema) for hour in sorted(hours) for path in _files(Part(table.name, hour).final(root))]
    return pa.concat_tables(parts) if parts else pa.Table.from_pylist([], schema=schema)


def _files(folder: Path) -> list[Path]:
    """Return the files of one hour, none if it has no rows."""
    return sorted(folder.glob("[!._]*.parquet"))


def _read_hour(path: Path, table: Table, hour: Hour, schema: pa.Schema) -> pa.Table:
    """Return the rows of one file, with date and hour."""
    try:
        with pq.ParquetFile(path) as file:
            found = file.read(columns=list(table.names))
        rows = found.num_rows
        for name, value in (("date", hour.date), ("hour", hour.hour)):
            field = schema.field(name)
            found = found.append_column(field, pa.repeat(pa.scalar(value, field.type), rows))
        return found.select(schema.names).cast(schema)
    except (pa.ArrowException, OSError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TablesError(path, f"cannot read file: {reason}") from None
