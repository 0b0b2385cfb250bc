"""Delta tables: opening, creating, committing, listing files, keeping them small, and errors of their library. Spec: sbus-pipeline(8).

The library, delta-rs, commits by creating the next file of a table's log if it does not exist: by a hard link in a directory, by a
conditional put in an object store. Neither needs a lock.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from sbus_archive.storage.attempts import Attempts, advice_about
from sbus_archive.storage.files import TablesError, sync_folder
from sbus_archive.storage.location import ArchivePath, table_uri
from sbus_archive.tables.data_files import DataFile
from sbus_archive.tables.hours import Hour

CONFLICT = "another program has changed the table during this run. The published tables are complete. Run again"
REPLACED = "another program has replaced this commit: the server ignores If-None-Match. Use a server that obeys it, and run again"

_IS_STORAGE = re.compile(r"os error \d|Generic S3 error|Permission")
"""What the library says if the storage failed, and not the table or the comparison with other commits."""

_NOT_REPEATED = re.compile(r"request or response body error")
"""What the library says if the connection ended within a response. It repeats requests that fail otherwise ten times itself."""

_NOISE = re.compile(r"(?:\x1b\[[0-9;]*m|[\x00-\x1f↳])+")

_Result = TypeVar("_Result")


class UnfinishedError(OSError):
    """The storage failed, and the operation had no effect, so that it can be repeated."""


def repeat(root: ArchivePath, name: str, what: str, operation: Callable[[], _Result]) -> _Result:
    """Return the result of *operation*, which does *what* with the table *name*, and can be repeated. Repetitions are counted and reported.

    Raises:
        StorageError: the object store failed several times.
        Exception: all other errors of *operation*.
    """
    if isinstance(root, Path):
        return operation()
    failed: list[BaseException] = []

    def attempt() -> _Result | None:
        try:
            return operation()
        except (DeltaError, OSError) as error:
            if isinstance(error, UnfinishedError) or _NOT_REPEATED.search(str(error)):
                raise OSError(reason_of(error)) from None
            failed.append(error)
            return None

    result = Attempts().run(what, root / name, attempt)
    if failed:
        raise failed[0]
    return result  # type: ignore[return-value]  # None is a result too


def is_storage_error(error: BaseException) -> bool:
    """Return whether *error* says that the storage failed."""
    return _IS_STORAGE.search(str(error)) is not None


@contextlib.contextmanager
def errors_of(root: ArchivePath, name: str, what: str) -> Iterator[None]:
    """Translate errors of the library that happen when *what* is done to the table *name*: to write it, to read it. Raises TablesError."""
    uri = table_uri(root, name)
    try:
        yield
    except CommitFailedError as error:
        reason = f"cannot {what} table: {reason_of(error)}" if is_storage_error(error) else CONFLICT
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
    if not lines:
        return type(error).__name__
    # The last line has the status, or says what happened to the connection.
    reason = f"{lines[0]}: {lines[-1]}" if len(lines) > 1 and _IS_STORAGE.search(lines[0]) else lines[0]
    return reason + advice_about(text)


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

_MARK = "sbus.commit"
"""Member of the description of a commit, by which its writer finds it."""


def storage_options(root: ArchivePath) -> dict[str, str] | None:
    """Return what the Delta library needs for *root*: the same settings as all other clients of S3. None for a directory.

    Raises:
        StorageError: a variable of the environment is invalid, or the library cannot use it.
    """
    if isinstance(root, Path):
        return None
    from sbus_archive.storage.objects import s3_settings  # noqa: PLC0415 - only object stores need the clients of PyArrow

    found = s3_settings(root, os.environ)
    found.require_system_authorities(root)
    options = {
        "aws_region": found.region,
        "aws_endpoint": found.endpoint,
        "aws_access_key_id": found.key,
        "aws_secret_access_key": found.secret,
        "aws_session_token": found.token,
        # With an endpoint, the library would ask only the services of Amazon for credentials, and not read the files.
        "aws_force_credential_load": None if found.key else "true",
        # A server without TLS must be allowed explicitly: naming it with http:// does so.
        "allow_http": "true" if found.endpoint and found.endpoint.startswith("http://") else "false",
    }
    return {name: value for name, value in options.items() if value is not None}


def open_table(root: ArchivePath, name: str, version: int | None = None) -> DeltaTable | None:
    """Return the table *name* at *version* (None: the newest), None if it does not exist.

    Raises:
        TablesError: it cannot be read, or its log is damaged.
        StorageError: the object store failed several times, or a variable of the environment is invalid.
    """
    if isinstance(root, Path) and not (root / name / LOG).exists():
        return None
    uri, options = table_uri(root, name), storage_options(root)
    try:
        return repeat(root, name, "open", lambda: DeltaTable(uri, version=version, storage_options=options))
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:
        advice = "" if is_storage_error(error) else f". If it is damaged, move {root} away and run sbus-pipeline again"
        raise TablesError(uri, f"cannot read table: {reason_of(error)}{advice}") from None


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


def list_files(table: DeltaTable, hours: Collection[Hour] | None = None, columns: Sequence[str] = ()) -> list[ListedFile]:
    """Return the files of *hours* of *table* (None: all), in order of their hours, with the maxima of *columns*. Only the log is read."""
    actions = pa.table(table.get_add_actions(flatten=True))
    wanted_hours = None if hours is None else set(hours)
    if wanted_hours is not None:
        days = pa.array(sorted({hour.date for hour in wanted_hours}), pa.string())
        actions = actions.filter(pc.is_in(actions.column("partition.date").cast(pa.string()), value_set=days))
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
    chosen = found if wanted_hours is None else [file for file in found if file.hour in wanted_hours]
    return sorted(chosen, key=lambda file: (file.hour, file.path))


def replace_files(
    root: ArchivePath,
    name: str,
    table: DeltaTable,
    hours: Collection[Hour],
    files: Sequence[DataFile],
    *,
    transactions: Sequence[Transaction] = (),
) -> None:
    """Commit once: *files*, which exist and are durable, replace all files of *hours* of the table *name*, with *transactions*.

    The commit is durable on return. Nothing is committed if nothing changes.

    Raises:
        TablesError: the commit failed, or another program has committed since *table* was opened.
        StorageError: the object store failed several times.
    """
    now, version, mark = time.time_ns() // 10**6, table.version(), str(uuid.uuid4())
    actions: list[AddAction | RemoveAction] = [
        *(RemoveAction(each.path, True, now, each.size, _partition(each.hour)) for each in list_files(table, hours)),
        *(AddAction(each.path, each.size, _partition(each.hour), now, True, each.statistics) for each in files),
    ]
    if not actions and not transactions:
        return
    properties = CommitProperties(custom_metadata={_MARK: mark}, max_commit_retries=0, app_transactions=[*transactions])

    def commit() -> None:
        try:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                PARTITIONS,
                commit_properties=properties,
                post_commithook_properties=WITHOUT_HOOKS,
            )
        except (DeltaError, OSError) as error:
            if isinstance(root, Path):
                raise
            # A server can have made a commit whose response was lost. The library repeats the request, and sees a conflict with itself.
            newest, is_own = _find_commit(root, name, version + 1, mark)
            if is_own:
                return
            if newest == version and is_storage_error(error):
                raise UnfinishedError(str(error)) from None
            raise

    with errors_of(root, name, "write"):
        if not isinstance(root, Path):
            # A server that ignores the condition of a put would let this commit replace another one, made since the table was opened.
            repeat(root, name, "read", table.update_incremental)
            if table.version() != version:
                raise TablesError(table_uri(root, name), CONFLICT)
        repeat(root, name, "write", commit)
        repeat(root, name, "read", table.update_incremental)
        if table.version() != version + 1:
            raise TablesError(table_uri(root, name), CONFLICT)
        if not isinstance(root, Path) and repeat(root, name, "read", lambda: table.history(1))[0].get(_MARK) != mark:
            raise TablesError(table_uri(root, name), REPLACED)
        sync_log(root, name, table)


def _find_commit(root: ArchivePath, name: str, version: int, mark: str) -> tuple[int | None, bool]:
    """Return the newest version of the table *name*, and whether *version* is the commit with *mark*."""
    found = open_table(root, name)
    if found is None:
        return None, False
    if found.version() < version:
        return found.version(), False
    commits = repeat(root, name, "read", lambda: found.history(found.version() - version + 1))
    return found.version(), commits[-1].get(_MARK) == mark


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


COMMITS = 16
"""Number of commits of a table between two maintenances: four hours, if the table changes every quarter of an hour."""

RETENTION_HOURS = 24
"""How long replaced files are kept: readers that began before have this time, and earlier versions can be read."""


def is_due(before: int, version: int) -> bool:
    """Return whether a table whose version was *before* and is *version* now is due."""
    return before // COMMITS != version // COMMITS


def remove_old_files(table: DeltaTable) -> None:
    """Remove files that were replaced long ago, or that no commit names. Raises DeltaError, OSError."""
    table.vacuum(RETENTION_HOURS, dry_run=False, full=True, commit_properties=ONCE, post_commithook_properties=WITHOUT_HOOKS)


def shorten_log(table: DeltaTable) -> None:
    """Write a checkpoint of *table*, and remove older files of its log. Its version is published. Raises DeltaError, OSError."""
    table.create_checkpoint()
    table.cleanup_metadata()
