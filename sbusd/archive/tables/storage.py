"""Reads the tables without Spark, all at one moment. Spec: sbus-pipeline(8).

Each table is a Delta table. A commit of the table ``hours`` publishes them: with the manifests, it records the version of each other table
as an application transaction of the format. A reader opens the newest version of ``hours``, and the others at the versions recorded there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from sbusd.archive.files import TablesError
from sbusd.archive.storage.location import ArchivePath
from sbusd.archive.storage.store import store_of
from sbusd.archive.tables.data_files import read_rows
from sbusd.archive.tables.delta import list_files, open_table
from sbusd.archive.tables.hours import Hour, Manifest
from sbusd.archive.tables.library_errors import errors_of
from sbusd.archive.tables.location import table_uri
from sbusd.archive.tables.published import open_published
from sbusd.archive.tables.schema import TABLES, Table


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """All tables at one moment; ``tables`` by name, rows ordered by hour."""

    manifests: dict[Hour, Manifest]
    tables: dict[str, pa.Table]


def read_tables(
    root: ArchivePath, *, since: Hour | None = None, until: Hour | None = None, names: Collection[str] | None = None
) -> TableSnapshot:
    """Return the tables *names* under *root* (None: all), from the hour *since* to the hour *until*, inclusive.

    Raises:
        TablesError: no tables exist, or a file is damaged.
        StorageError: the object store cannot be used.
    """
    published = open_published(root)
    hours = {hour for hour in published.hours() if (since is None or since <= hour) and (until is None or hour <= until)}
    chosen = [table for table in TABLES if names is None or table.name in names]
    return TableSnapshot(
        published.manifests_of(hours),
        {table.name: _read_table(root, table, published.version_of(table.name), hours) for table in chosen},
    )


def read_hours(root: ArchivePath) -> list[Hour]:
    """Return all published hours under *root*, in order; only a log is read. Raises TablesError, as :func:`read_tables`."""
    return open_published(root).hours()


def _read_table(root: ArchivePath, table: Table, version: int | None, hours: Collection[Hour]) -> pa.Table:
    """Return the rows of *hours* of one table at *version*; without one, it was never published and is empty."""
    schema = table.arrow_schema()
    if version is None:
        return schema.empty_table()
    delta = open_table(root, table.name, version)
    if delta is None:
        raise TablesError(table_uri(root, table.name), f"no table found. Move {root} away and run sbus-pipeline again")
    with errors_of(root, table.name, "read"):
        files = [(file.path, file.size, file.hour) for file in list_files(delta, hours)]
    return read_rows(store_of(root), table.name, files, schema)
