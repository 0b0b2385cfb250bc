"""The table of manifests, which publishes the others: see :mod:`sbusd.archive.tables.storage`.

Each hour is one file with one row. The log has the number of absent segments of each, so questions about all hours of a year read no file.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from sbusd.archive.files import TablesError
from sbusd.archive.storage.location import ArchivePath
from sbusd.archive.storage.store import FileStore, store_of
from sbusd.archive.tables.data_files import DataFile, read_rows, write_rows
from sbusd.archive.tables.delta import list_files, open_table
from sbusd.archive.tables.hours import MANIFESTS, Hour, Manifest
from sbusd.archive.tables.location import table_uri

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
