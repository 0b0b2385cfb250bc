"""Tables made without Spark, for tests that only read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sbusd.archive.record.entry import IndexEntry
from sbusd.archive.record.schema import Row
from sbusd.archive.tables.hours import Hour, Manifest
from sbusd.archive.tables.schema import TABLES
from sbusd.archive.tables.storage import STAGING, Part, prepare_folder, publish
from tests.support.tallies import Lines, tables_of
from tests.support.traffic import deliver


def publish_record(folder: Path, record: Mapping[str, Sequence[Row]], absent: tuple[str, ...] = ()) -> Path:
    """Publish the tables of *record* under *folder* and return where; *absent* is what each hour says is missing in it."""
    root = folder / "tables"
    entries = [entry for host, rows in record.items() for entry in deliver(folder / "archive", host, rows)]
    hours: dict[Hour, list[IndexEntry]] = {}
    for entry in entries:
        hours.setdefault(Hour(entry.date, entry.hour), []).append(entry)
    prepare_folder(root)
    staging = root / STAGING / "1"
    staging.mkdir()
    tables = tables_of({host: list(rows) for host, rows in record.items()})
    parts = [Part(table.name, hour) for table in TABLES for hour in hours]
    for part in parts:
        _stage(part, staging, tables[part.table])
    publish(root, staging, parts, [Manifest(hour, 1, tuple(found), absent=absent) for hour, found in hours.items()])
    return root


def _stage(part: Part, staging: Path, lines: Lines) -> None:
    """Write the lines of one hour as Spark would."""
    (table,) = [table for table in TABLES if table.name == part.table]
    rows = [dict(zip(table.names, line[2:], strict=True)) for line in lines if line[:2] == (part.hour.date, part.hour.hour)]
    if rows:
        schema = pa.schema([table.arrow_schema().field(name) for name in table.names])
        part.staged(staging).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), part.staged(staging) / "part-0.parquet")
