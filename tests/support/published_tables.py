"""Tables made without Spark, for tests that only read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from sbus_archive.record.layout import IndexEntry
from sbus_archive.record.schema import Row
from sbus_archive.storage.location import ArchivePath
from sbus_archive.storage.store import store_of
from sbus_archive.tables.data_files import write_rows
from sbus_archive.tables.hours import Hour, Manifest
from sbus_archive.tables.publication import TableWriter
from sbus_archive.tables.schema import TABLES, Table
from tests.support.tallies import tables_of
from tests.support.traffic import deliver


def publish_record(folder: Path, record: Mapping[str, Sequence[Row]], absent: tuple[str, ...] = ()) -> Path:
    """Publish the tables of *record* under *folder* and return where; *absent* is what each hour says is missing in it."""
    publish_record_at(folder / "tables", folder, record, absent)
    return folder / "tables"


def publish_record_at(root: ArchivePath, folder: Path, record: Mapping[str, Sequence[Row]], absent: tuple[str, ...] = ()) -> None:
    """Publish the tables of *record* at *root*; the archive is under *folder*."""
    entries = [entry for host, rows in record.items() for entry in deliver(folder / "archive", host, rows)]
    hours: dict[Hour, list[IndexEntry]] = {}
    for entry in entries:
        hours.setdefault(Hour(entry.date, entry.hour), []).append(entry)
    writer = TableWriter(root)
    writer.prepare()
    lines = tables_of({host: list(rows) for host, rows in record.items()})
    for table in TABLES:
        names = ("date", "hour", *table.names)
        replace_rows(writer, table, list(hours), [dict(zip(names, line, strict=True)) for line in lines[table.name]])
    writer.publish([Manifest(hour, 1, tuple(found), absent=absent) for hour, found in hours.items()])


def replace_rows(writer: TableWriter, table: Table, hours: Sequence[Hour], rows: Iterable[dict[str, object]]) -> None:
    """Replace *hours* of *table* by *rows*, which are ordered by hour."""
    schema = table.arrow_schema()
    batches = pa.Table.from_pylist(list(rows), schema=schema).to_batches()
    writer.replace(table.name, hours, write_rows(store_of(writer.root), table.name, schema, batches))
