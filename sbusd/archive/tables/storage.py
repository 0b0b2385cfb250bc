"""Reads the tables without Spark, all at one moment. Spec: sbus-pipeline(8).

Each table is a Delta table. A commit of the table ``hours`` publishes them: with the manifests, it records the version of each other table
as an application transaction of the format. A reader opens the newest version of ``hours``, and the others at the versions recorded there.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from sbusd.archive.files import TablesError
from sbusd.archive.tables.delta import errors_of, open_table
from sbusd.archive.tables.hours import MANIFESTS, Hour, Manifest
from sbusd.archive.tables.location import Location, table_uri
from sbusd.archive.tables.old_layout import check_layout
from sbusd.archive.tables.schema import TABLES, Table

HOURS_SCHEMA = pa.schema([pa.field("hour", pa.int32()), pa.field("manifest", pa.string()), pa.field("date", pa.string())])
"""The columns of the table of manifests; a manifest is a JSON object."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """All tables at one moment; ``tables`` by name, rows ordered by hour."""

    manifests: dict[Hour, Manifest]
    tables: dict[str, pa.Table]


def read_tables(
    root: Location, *, since: Hour | None = None, until: Hour | None = None, names: Collection[str] | None = None
) -> TableSnapshot:
    """Return the tables *names* under *root* (None: all), from the hour *since* to the hour *until*, inclusive.

    Raises:
        TablesError: there are no tables, they have an old layout, or a file is damaged.
    """
    hours = _open_hours(root)
    within = _within(since, until)
    chosen = [table for table in TABLES if names is None or table.name in names]
    return TableSnapshot(
        manifests_of(root, hours, within),
        {table.name: _read_table(root, table, hours.transaction_version(table.name), within) for table in chosen},
    )


def read_manifests(root: Location) -> dict[Hour, Manifest]:
    """Return the manifests of all published hours under *root*, in order. Raises TablesError, as :func:`read_tables`."""
    return manifests_of(root, _open_hours(root))


def manifests_of(root: Location, hours: DeltaTable, within: pc.Expression | None = None) -> dict[Hour, Manifest]:
    """Return the manifests in *hours*, in order. Raises TablesError."""
    uri = table_uri(root, MANIFESTS)
    with errors_of(root, MANIFESTS, "read"):
        texts = hours.to_pyarrow_dataset().to_table(columns=["manifest"], filter=within).column("manifest").to_pylist()
    try:
        found = [Manifest.from_json(json.loads(text)) for text in texts]
    except ValueError as error:
        raise TablesError(uri, f"{error}") from None
    return {manifest.hour: manifest for manifest in sorted(found, key=lambda manifest: manifest.hour)}


def _open_hours(root: Location) -> DeltaTable:
    """Return the table of manifests. Raises TablesError."""
    if not isinstance(root, str):
        check_layout(root)
    hours = open_table(root, MANIFESTS)
    if hours is None:
        raise TablesError(root, "no tables found. Run: sbusctl report --now")
    return hours


def _within(since: Hour | None, until: Hour | None) -> pc.Expression | None:
    """Return the filter for the hours from *since* to *until*; None for all."""
    date, hour = pc.field("date"), pc.field("hour")
    bounds = []
    if since is not None:
        bounds.append((date > since.date) | ((date == since.date) & (hour >= since.hour)))
    if until is not None:
        bounds.append((date < until.date) | ((date == until.date) & (hour <= until.hour)))
    if not bounds:
        return None
    return bounds[0] & bounds[1] if len(bounds) > 1 else bounds[0]


def _read_table(root: Location, table: Table, version: int | None, within: pc.Expression | None) -> pa.Table:
    """Return the rows of one table at *version*; without one, it was never published and is empty."""
    schema = table.arrow_schema()
    if version is None:
        return schema.empty_table()
    delta = open_table(root, table.name, version)
    if delta is None:
        raise TablesError(table_uri(root, table.name), f"no table found. Move {root} away and run sbus-pipeline again")
    with errors_of(root, table.name, "read"):
        found = delta.to_pyarrow_dataset().to_table(filter=within)
        columns = {field.name: _column(found, field) for field in schema}
        order = [(name, "ascending") for name in ("date", "hour", *table.keys)]
        return pa.table(columns, schema=schema).sort_by(order)


def _column(found: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
    """Return the column *field*; null in tables that are older than the column."""
    if field.name in found.schema.names:
        return found.column(field.name).cast(field.type)
    return pa.nulls(found.num_rows, field.type)
