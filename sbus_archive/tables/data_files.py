"""The Parquet files of a table: each has rows of one hour, and is written before the commit that names it. Spec: sbus-pipeline(8).

Executors of Spark use this module too, so it needs PyArrow, but not the Delta library.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from sbus_archive.storage.files import TablesError, make_folder, sync_folder
from sbus_archive.storage.store import FileStore
from sbus_archive.tables.hours import Hour

LONGEST_TEXT = 32
"""Maximum length of a text in the statistics of a file, in characters, as Delta Lake recommends: they are stored in the log."""

_THREADS = 8
"""Number of files that are read at the same time: an object store has a delay for each."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with the rows of ``hour``; ``path`` is relative to the table, ``size`` in bytes.

    ``statistics`` is the JSON object of the Delta protocol, which the log has for each file.
    """

    path: str
    hour: Hour
    size: int
    rows: int
    statistics: str


def folder_of(hour: Hour) -> str:
    """Return the directory of the files of *hour*, relative to the table."""
    return f"date={hour.date}/hour={hour.hour}"


def statistics_of(metadata: pq.FileMetaData) -> str:
    """Return the statistics of a file: number of rows, and number of nulls, minimum and maximum of each column that has them."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(metadata.num_columns if metadata.num_row_groups else 0):
        groups = [metadata.row_group(group).column(number) for group in range(metadata.num_row_groups)]
        name, found = groups[0].path_in_schema, [group.statistics for group in groups]
        if "." in name or any(each is None or not each.has_null_count for each in found):
            continue  # part of a list
        nulls[name] = sum(each.null_count for each in found if each is not None)
        # A group without any value has no bounds.
        bounded = [each for each in found if each is not None and each.has_min_max]
        if bounded and len(bounded) + sum(each.null_count == group.num_values for each, group in _rest(found, groups)) == len(found):
            low, high = _value(min(each.min for each in bounded)), _value(max(each.max for each in bounded))
            if low is not None and high is not None:
                least[name], most[name] = low, high
    return json.dumps({"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls})


def _rest(found: Sequence[Any], groups: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the statistics without bounds, with their groups."""
    return ((each, group) for each, group in zip(found, groups, strict=True) if not each.has_min_max)


def _value(value: object) -> int | str | None:
    """Return *value* as the log has it; None if it is not used there."""
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def write_rows(store: FileStore, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
    """Write *batches* with *schema*, in order of ``date`` and ``hour``, into new files of *table*, one for each hour; return them.

    No reader sees them before they are committed.

    Raises:
        StorageError, OSError: a file cannot be written.
        Exception: what *batches* raises.
    """
    written: list[DataFile] = []
    output: _Output | None = None
    names = [name for name in schema.names if name not in ("date", "hour")]
    for batch in batches:
        for hour, rows in _by_hour(batch):
            if output is None or output.hour != hour:
                if output is not None:
                    written.append(output.close(store, table))
                output = _Output(hour, pa.schema([pa.field(name, schema.field(name).type) for name in names]))
            output.add(rows.select(names))
    if output is not None:
        written.append(output.close(store, table))
    return written


class _Output:
    """A file while it is written, on this machine."""

    def __init__(self, hour: Hour, schema: pa.Schema) -> None:
        self.hour = hour
        self._schema = schema
        self._stream = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - close() closes it
        self._writer = pq.ParquetWriter(self._stream, schema, compression="zstd")

    def add(self, rows: pa.RecordBatch) -> None:
        """Add *rows*."""
        self._writer.write_batch(rows.cast(self._schema))

    def close(self, store: FileStore, table: str) -> DataFile:
        """Write the file to *store*, and return it."""
        with self._stream:
            self._writer.close()
            path = f"{folder_of(self.hour)}/part-{uuid.uuid4()}.parquet"
            size = self._stream.tell()
            self._stream.seek(0)
            metadata = pq.read_metadata(self._stream)
            store.put(f"{table}/{path}", self._stream)
            return DataFile(path, self.hour, size, metadata.num_rows, statistics_of(metadata))


def _by_hour(batch: pa.RecordBatch) -> Iterator[tuple[Hour, pa.RecordBatch]]:
    """Yield the rows of each hour of *batch*, in order."""
    dates, hours = batch.column("date").to_pylist(), batch.column("hour").to_pylist()
    begin = 0
    for place in range(1, len(hours) + 1):
        if place == len(hours) or (dates[place], hours[place]) != (dates[begin], hours[begin]):
            yield Hour(dates[begin], hours[begin]), batch.slice(begin, place - begin)
            begin = place


def describe_file(folder: Path, path: str, hour: Hour) -> DataFile:
    """Return the file *path* below *folder*, by its footer only. Raises OSError, ArrowException."""
    with pq.ParquetFile(folder / path) as file:
        return DataFile(path, hour, (folder / path).stat().st_size, file.metadata.num_rows, statistics_of(file.metadata))


def read_rows(store: FileStore, table: str, files: Sequence[tuple[str, int, Hour]], schema: pa.Schema) -> pa.Table:
    """Return the rows of *files* of *table*, by path, size and hour, in their order; null in columns that a file does not have.

    Raises:
        TablesError: a file is missing or damaged.
        StorageError: the object store cannot be used.
    """
    with ThreadPoolExecutor(min(_THREADS, len(files)) or 1, "tables") as threads:
        parts = list(threads.map(lambda each: _read_file(store, f"{table}/{each[0]}", each[1], each[2], schema), files))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _read_file(store: FileStore, name: str, size: int, hour: Hour, schema: pa.Schema) -> pa.Table:
    """Return the rows of one file, with date and hour."""
    path = store.path(name)
    try:
        with pq.ParquetFile(path if isinstance(path, Path) else pa.BufferReader(store.read(name, size))) as file:
            # In a thread of Python: one of PyArrow that frees memory of Python while the interpreter exits would abort the process.
            found = file.read(columns=[name for name in schema.names if name in file.schema_arrow.names], use_threads=False)
        known = {"date": hour.date, "hour": hour.hour}
        columns = {
            field.name: found.column(field.name).cast(field.type)
            if field.name in found.schema.names
            else pa.repeat(pa.scalar(known.get(field.name), field.type), found.num_rows)
            for field in schema
        }
        return pa.table(columns, schema=schema)
    except (pa.ArrowException, OSError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TablesError(path, f"cannot read file: {reason}") from None


STAGING = ".staging-"
"""Beginning of the name of such a directory. A table's name and a random text follow."""


def new_staging(root: Path, name: str) -> Path:
    """Return a new path below *root*, the directory of the tables, for rows of the table *name*."""
    return root / f"{STAGING}{name}-{uuid.uuid4()}"


def adopt(root: Path, name: str, staging: Path) -> list[DataFile]:
    """Move the Parquet files below *staging* into the table *name* under *root*, durably, and return them. They are not committed.

    *staging* has directories ``date=YYYY-MM-DD/hour=H``, and is removed.

    Raises:
        OSError, ArrowException: a file cannot be read or moved.
    """
    found = []
    for path in sorted(staging.glob("date=*/hour=*/[!._]*.parquet")):
        hour = Hour(path.parent.parent.name.removeprefix("date="), int(path.parent.name.removeprefix("hour=")))
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
        relative = f"{folder_of(hour)}/{path.name}"
        target = root / name / relative
        make_folder(target.parent)
        path.rename(target)
        found.append(describe_file(root / name, relative, hour))
    folders = {(root / name / file.path).parent for file in found}
    for folder in {each for inner in folders for each in (inner, inner.parent, inner.parent.parent)}:
        sync_folder(folder)
    shutil.rmtree(staging, ignore_errors=True)
    return found


def remove_leftovers(root: Path) -> None:
    """Remove what killed runs left under *root*. Spark of such a run can still write there for a moment; it fails then."""
    for folder in root.glob(f"{STAGING}*"):
        shutil.rmtree(folder, ignore_errors=True)
