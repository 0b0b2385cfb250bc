"""Delta tables: opening, creating, and adding columns; errors of the Delta library in one line. Spec: sbus-pipeline(8).

The library, delta-rs, commits by creating the next file of a table's log if it does not exist: by a hard link in a directory, by a
conditional put in an object store. Neither needs a lock.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from sbusd.archive.files import TablesError, sync_folder
from sbusd.archive.tables.location import Location, storage_options, table_uri

LOG = "_delta_log"
"""The directory of a table's log."""

DATE = "date"
"""The column by which all tables are partitioned: files of a day can be merged."""

SETTINGS = {
    # Readers that began at an earlier version have a day to finish.
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.logRetentionDuration": "interval 1 days",
}

WITHOUT_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""For commits. A checkpoint between a commit and its publication could remove the log of the published version; see maintenance.py."""

ONCE = CommitProperties(max_commit_retries=0)
"""For commits that fail if another program has committed since the table was opened."""

_IS_STORAGE = re.compile(r"os error \d|Generic S3 error|Permission")
"""What a failed commit says if the storage failed, and not the comparison with other commits."""

_NOISE = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x1f↳]+")


def open_table(location: Location, name: str, version: int | None = None) -> DeltaTable | None:
    """Return the table *name* at *version* (None: the newest), None if it does not exist.

    Raises:
        TablesError: it cannot be read, or its log is damaged.
    """
    uri = table_uri(location, name)
    if isinstance(location, Path) and not (location / name / LOG).exists():
        return None
    try:
        return DeltaTable(uri, version=version, storage_options=storage_options(location))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:
        raise TablesError(uri, f"cannot read table: {reason_of(error)}. {_advice(location)}") from None


def create_table(location: Location, name: str, schema: pa.Schema) -> DeltaTable:
    """Create the table *name* without rows, and return it. Raises TablesError."""
    with errors_of(location, name, "create"):
        return DeltaTable.create(
            table_uri(location, name), schema, partition_by=[DATE], configuration=SETTINGS, storage_options=storage_options(location)
        )


def add_columns(table: DeltaTable, schema: pa.Schema) -> bool:
    """Add the columns of *schema* that *table* does not have; its rows are null there. Return whether there were any.

    Raises:
        ValueError: a column has another type.
    """
    known: Mapping[str, Field] = {field.name: field for field in table.schema().fields}
    new = []
    for field in Schema.from_arrow(schema).fields:
        if field.name not in known:
            new.append(Field(field.name, field.type, nullable=True))
        elif known[field.name].type != field.type:
            raise ValueError(f"the column {field.name} has the type {known[field.name].type}, not {field.type}")
    if new:
        table.alter.add_columns(new, commit_properties=ONCE, post_commithook_properties=WITHOUT_HOOKS)
    return bool(new)


def sync_table(location: Location, table: DeltaTable, known: set[str]) -> None:
    """Make the newest commit of *table* durable, with its files that are not in *known*. The library does not. Raises OSError."""
    if isinstance(location, str):
        return
    root = Path(table_uri(location, "")) / Path(table.table_uri.rstrip("/")).name
    paths = [root / unquote(path) for path in files_of(table) - known]
    for path in (*paths, root / LOG / f"{table.version():020}.json"):
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
    for folder in {path.parent for path in paths} | {root, root / LOG}:
        sync_folder(folder)


def files_of(table: DeltaTable) -> set[str]:
    """Return the paths of the files of *table*, relative to it."""
    return set(pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist())


@contextlib.contextmanager
def errors_of(location: Location, name: str, what: str) -> Iterator[None]:
    """Translate errors of the library that happen when *what* is done to the table *name*: to write it, to read it. Raises TablesError."""
    uri = table_uri(location, name)
    try:
        yield
    except CommitFailedError as error:
        reason = "another program has changed the table during this run. The published tables are complete. Run again"
        if _IS_STORAGE.search(str(error)):
            reason = f"cannot {what} table: {reason_of(error)}"
        raise TablesError(uri, reason) from None
    except (DeltaError, OSError, pa.ArrowException, ValueError) as error:
        raise TablesError(uri, f"cannot {what} table: {reason_of(error)}") from None


def reason_of(error: BaseException) -> str:
    """Return the reason in *error* in one line: that of the operating system, if there is one."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error)
    if (match := re.search(r"([A-Z][a-zA-Z ,'-]+) \(os error \d+\)", text)) is not None:
        path = re.search(r"(?:Object at location|file) (\S+) not found", text)
        return f"{path[1]}: {match[1]}" if path else match[1]
    lines = [line for line in (_NOISE.sub(" ", each).strip() for each in text.splitlines()) if line]
    return lines[0] if lines else type(error).__name__


def _advice(location: Location) -> str:
    """Return what to do about a damaged table."""
    return f"If it is damaged, move {location} away and run sbus-pipeline again"
