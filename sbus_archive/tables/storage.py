"""Reads the tables without Spark, all at one moment. Spec: sbus-pipeline(8).

Each table is a Delta table. A commit of the table ``hours`` publishes them: with the manifests, it records the version of each other table
as an application transaction of the format. A reader opens the newest version of ``hours``, and the others at the versions recorded there.

Each hour is one file with one row. The log has the number of absent segments of each, so questions about all hours of a year read no file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from sbus_archive.storage.files import TablesError
from sbus_archive.storage.location import ArchivePath, table_uri
from sbus_archive.storage.store import FileStore, store_of
from sbus_archive.tables.data_files import DataFile, read_rows, write_rows
from sbus_archive.tables.delta import errors_of, list_files, open_table
from sbus_archive.tables.hours import MANIFESTS, Hour, Manifest
from sbus_archive.tables.schema import TABLES, Table

HOURS_SCHEMA = pa.schema(
    [pa.field("manifest", pa.string()), pa.field("absent", pa.int64()), pa.field("date", pa.string()), pa.field("hour", pa.int32())]
)
"""The columns of the table of manifests; a manifest is a JSON object, ``absent`` the number of its absent segments."""

_ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class PublishedHours:
    """The published hours under ``root``, as of one version of their ``table``."""

    root: ArchivePath
    table: DeltaTable

    def hours(self) -> list[Hour]:
        """Return all hours, in order."""
        return [file.hour for file in list_files(self.table)]

    def incomplete_hours(self) -> set[Hour]:
        """Return the hours whose manifest lists absent segments."""
        return {file.hour for file in list_files(self.table, columns=[_ABSENT]) if file.most[_ABSENT] != 0}

    def manifests_of(self, hours: Collection[Hour]) -> dict[Hour, Manifest]:
        """Return the manifests of those of *hours* that are published, in order; no other manifest is read.

        Raises:
            TablesError: a manifest is damaged, or of a version that is not kept.
            StorageError: the object store cannot be used.
        """
        files = [(file.path, file.size, file.hour) for file in list_files(self.table, hours)]
        texts = read_rows(store_of(self.root), MANIFESTS, files, HOURS_SCHEMA).column("manifest").to_pylist()
        try:
            found = [Manifest.from_json(json.loads(text)) for text in texts]
        except ValueError as error:
            raise TablesError(table_uri(self.root, MANIFESTS), f"{error}") from None
        return {manifest.hour: manifest for manifest in found}

    def version_of(self, name: str) -> int | None:
        """Return the published version of the table *name*; None if it was never published."""
        return self.table.transaction_version(name)


def open_published(root: ArchivePath) -> PublishedHours:
    """Return the newest published hours under *root*.

    Raises:
        TablesError: no tables exist, or the log is damaged.
    """
    table = open_table(root, MANIFESTS)
    if table is None:
        raise TablesError(root, "no tables found. Run: sbusctl report --now")
    return PublishedHours(root, table)


def write_manifests(store: FileStore, manifests: Iterable[Manifest]) -> list[DataFile]:
    """Write *manifests*, each into a new file, and return the files. Raises StorageError, OSError."""
    rows = [
        {"manifest": json.dumps(each.to_json()), _ABSENT: len(each.absent), "date": each.hour.date, "hour": each.hour.hour}
        for each in manifests
    ]
    return write_rows(store, MANIFESTS, HOURS_SCHEMA, pa.Table.from_pylist(rows, HOURS_SCHEMA).to_batches())


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
