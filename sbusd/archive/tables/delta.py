"""Delta tables: opening, creating, committing and listing files; errors of the Delta library in one line. Spec: sbus-pipeline(8).

The library, delta-rs, commits by creating the next file of a table's log if it does not exist: by a hard link in a directory, by a
conditional put in an object store. Neither needs a lock.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from sbusd.archive.files import TablesError, sync_folder
from sbusd.archive.storage.location import ArchivePath
from sbusd.archive.tables.data_files import DataFile
from sbusd.archive.tables.hours import Hour
from sbusd.archive.tables.location import table_uri

LOG = "_delta_log"
"""The directory of a table's log."""

PARTITIONS = ["date", "hour"]
"""The columns by which all tables are partitioned: each file belongs to one hour, and an hour is replaced without reading others."""

SETTINGS = {
    # Readers that began at an earlier version have a day to finish.
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.logRetentionDuration": "interval 1 days",
}

WITHOUT_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""For commits. A checkpoint between a commit and its publication could remove the log of the published version; see maintenance.py."""

ONCE = CommitProperties(max_commit_retries=0)
"""For commits that fail if another program has committed since the table was opened."""

CONFLICT = "another program has changed the table during this run. The published tables are complete. Run again"

_IS_STORAGE = re.compile(r"os error \d|Generic S3 error|Permission")
"""What a failed commit says if the storage failed, and not the comparison with other commits."""

_NOISE = re.compile(r"\x1b\[[0-9;]*m|[\x00-\x1f↳]+")


def storage_options(root: ArchivePath) -> dict[str, str] | None:
    """Return what the Delta library needs for *root*: the same settings as all other clients of S3. None for a directory.

    Raises:
        StorageError: a variable of the environment is invalid, or the library cannot use it.
    """
    if isinstance(root, Path):
        return None
    from sbusd.archive.storage.objects import s3_settings  # noqa: PLC0415 - only object stores need the clients of PyArrow

    found = s3_settings(root, os.environ)
    found.require_system_authorities(root)
    options = {
        "aws_region": found.region,
        "aws_endpoint": found.endpoint,
        "aws_access_key_id": found.key,
        "aws_secret_access_key": found.secret,
        "aws_session_token": found.token,
        # A server without TLS must be allowed explicitly: naming it with http:// does so.
        "allow_http": "true" if found.endpoint and found.endpoint.startswith("http://") else "false",
    }
    return {name: value for name, value in options.items() if value is not None}


def open_table(root: ArchivePath, name: str, version: int | None = None) -> DeltaTable | None:
    """Return the table *name* at *version* (None: the newest), None if it does not exist.

    Raises:
        TablesError: it cannot be read, or its log is damaged.
    """
    if isinstance(root, Path) and not (root / name / LOG).exists():
        return None
    uri = table_uri(root, name)
    try:
        return DeltaTable(uri, version=version, storage_options=storage_options(root))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:
        raise TablesError(
            uri, f"cannot read table: {reason_of(error)}. If it is damaged, move {root} away and run sbus-pipeline again"
        ) from None


def create_table(root: ArchivePath, name: str, schema: pa.Schema) -> DeltaTable:
    """Create the table *name* without rows, and return it. Raises TablesError."""
    with errors_of(root, name, "create"):
        return DeltaTable.create(
            table_uri(root, name), schema, partition_by=PARTITIONS, configuration=SETTINGS, storage_options=storage_options(root)
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


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that the log of a table names; ``most`` has the maximum of each column that was asked for, None if it is unknown."""

    path: str
    size: int
    hour: Hour
    most: dict[str, Any]


def list_files(table: DeltaTable, columns: Sequence[str] = ()) -> list[ListedFile]:
    """Return the files of *table*, in order of their hours, with the maxima of *columns*. Only the log is read."""
    actions = pa.table(table.get_add_actions(flatten=True))
    wanted = {name: f"max.{name}" for name in columns if f"max.{name}" in actions.schema.names}
    rows = actions.select(["path", "size_bytes", "partition.date", "partition.hour", *wanted.values()]).to_pylist()
    found = [
        ListedFile(
            unquote(row["path"]),
            row["size_bytes"],
            Hour(row["partition.date"], row["partition.hour"]),
            {name: row.get(wanted.get(name, "")) for name in columns},
        )
        for row in rows
    ]
    return sorted(found, key=lambda file: (file.hour, file.path))


def replace_files(
    root: ArchivePath,
    name: str,
    table: DeltaTable,
    hours: Collection[Hour],
    files: Sequence[DataFile],
    *,
    properties: CommitProperties = ONCE,
) -> None:
    """Commit once: *files*, which exist and are durable, replace all files of *hours* of the table *name*. The commit is durable on return.

    Raises:
        TablesError: the commit failed, or another program has committed since *table* was opened.
    """
    now, version = time.time_ns() // 10**6, table.version()
    old = [file for file in list_files(table) if file.hour in hours]
    with errors_of(root, name, "write"):
        table.create_write_transaction(
            [
                *(RemoveAction(each.path, True, now, each.size, _partition(each.hour)) for each in old),
                *(AddAction(each.path, each.size, _partition(each.hour), now, True, each.statistics) for each in files),
            ],
            "append",
            table.schema(),
            PARTITIONS,
            commit_properties=properties,
            post_commithook_properties=WITHOUT_HOOKS,
        )
        table.update_incremental()
        if table.version() != version + 1:
            raise TablesError(table_uri(root, name), CONFLICT)
        sync_log(root, name, table)


def sync_log(root: ArchivePath, name: str, table: DeltaTable) -> None:
    """Make the newest commit of *table* durable. The library does not. Raises OSError."""
    if not isinstance(root, Path):
        return
    log = root / name / LOG
    with open(log / f"{table.version():020}.json", "rb") as stream:
        os.fsync(stream.fileno())
    for folder in (log, log.parent):
        sync_folder(folder)


def _partition(hour: Hour) -> dict[str, str | None]:
    """Return the values of :data:`PARTITIONS`."""
    return {"date": hour.date, "hour": str(hour.hour)}


@contextlib.contextmanager
def errors_of(root: ArchivePath, name: str, what: str) -> Iterator[None]:
    """Translate errors of the library that happen when *what* is done to the table *name*: to write it, to read it. Raises TablesError."""
    uri = table_uri(root, name)
    try:
        yield
    except CommitFailedError as error:
        reason = f"cannot {what} table: {reason_of(error)}" if _IS_STORAGE.search(str(error)) else CONFLICT
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
