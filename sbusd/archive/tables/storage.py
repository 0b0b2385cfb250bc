"""Publishes the tables of an hour, all at once or none, and reads them without Spark. Spec: sbus-pipeline(8).

New rows are written under ``.staging``. A plan, written by rename, says which of them replace which directories. From then on the
publication will be completed: by this process, or, if it is killed, by the next one that opens the directory. Each step can be repeated.
The lock is held while directories are exchanged, so a reader with a shared lock sees whole hours only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sbusd.archive.files import TablesError, publish_file, sync_folder
from sbusd.archive.tables.hours import Hour, Manifest, manifest_path, read_manifests
from sbusd.archive.tables.schema import TABLES, Table

STAGING = ".staging"
PLAN = ".plan.json"
LOCK = ".lock"

_MODE = 0o666
"""Mode of the lock, before the umask: every user that can read the tables can lock them."""


@dataclass(frozen=True, slots=True)
class Part:
    """One hour of one table."""

    table: str
    hour: Hour

    def staged(self, staging: Path) -> Path:
        """Return the directory that Spark writes; its hour can have one digit."""
        return staging / self.table / f"date={self.hour.date}" / f"hour={self.hour.hour}"

    def final(self, root: Path) -> Path:
        """Return the published directory."""
        return root / self.table / self.hour.folder


@contextlib.contextmanager
def locked(root: Path, *, shared: bool) -> Iterator[None]:
    """Hold the lock of the tables under *root*: *shared* to read, exclusive to publish. Waits for other holders, which is short.

    Raises:
        TablesError: there are no tables, or the lock cannot be opened.
    """
    path = root / LOCK
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC if shared else os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
    except FileNotFoundError:
        raise TablesError(root, "no tables found. Run: sbusctl report --now") from None
    except OSError as error:
        raise TablesError(path, f"cannot open file: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def write_empty(folder: Path, table: Table) -> None:
    """Write a file without rows into *folder*, one hour of *table*, if it does not exist, so that a reader finds the columns. Raises
    OSError."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        schema = pa.schema([table.arrow_schema().field(name) for name in table.names])
        pq.write_table(schema.empty_table(), folder / "part-0.parquet", compression="zstd")


def publish(root: Path, staging: Path, parts: Sequence[Part], manifests: Sequence[Manifest]) -> None:
    """Replace *parts* of *root* by those under *staging*, and write *manifests*.

    A part that is not under *staging* is empty now. *staging* is removed.

    Raises:
        OSError: the directory cannot be written.
    """
    _sync_files(staging)
    plan = {
        "staging": staging.name,
        "parts": [[part.table, part.hour.date, part.hour.hour, part.staged(staging).is_dir()] for part in parts],
        "manifests": [manifest.to_json() for manifest in manifests],
    }
    publish_file(root / PLAN, json.dumps(plan).encode())
    finish_publication(root)


def finish_publication(root: Path) -> bool:
    """Carry out the plan under *root*, also that of an earlier process; return whether there was one.

    Raises:
        TablesError: the plan is invalid.
        OSError: the directory cannot be written.
    """
    with locked(root, shared=False):
        path = root / PLAN
        try:
            plan = json.loads(path.read_bytes())
            staging = root / STAGING / plan["staging"]
            parts = [(Part(table, Hour(date, hour)), has_rows) for table, date, hour, has_rows in plan["parts"]]
            manifests = [Manifest.from_json(value) for value in plan["manifests"]]
        except FileNotFoundError:
            return False
        except (ValueError, KeyError, TypeError) as error:
            raise TablesError(path, f"invalid plan: {error}. Remove the file and run sbus-pipeline --rebuild") from None
        for part, has_rows in parts:
            _exchange(part, staging, root, has_rows=has_rows)
        for manifest in manifests:
            target = manifest_path(root, manifest.hour)
            target.parent.mkdir(exist_ok=True)
            publish_file(target, json.dumps(manifest.to_json()).encode())
        path.unlink()
        sync_folder(root)
    shutil.rmtree(staging, ignore_errors=True)
    return True


def is_interrupted(root: Path) -> bool:
    """Return whether a publication was interrupted."""
    return (root / PLAN).exists()


def prepare_folder(root: Path) -> None:
    """Create *root* as a directory of tables, finish an interrupted publication, and remove unpublished files. Requires the run lock.

    Raises:
        TablesError, OSError: as :func:`finish_publication`.
    """
    root.mkdir(parents=True, exist_ok=True)
    finish_publication(root)
    shutil.rmtree(root / STAGING, ignore_errors=True)
    for table in TABLES:
        (root / table.name).mkdir(exist_ok=True)
    (root / STAGING).mkdir()


def _exchange(part: Part, staging: Path, root: Path, *, has_rows: bool) -> None:
    """Publish one part. A part that is not staged was published before."""
    staged, final = part.staged(staging), part.final(root)
    if has_rows and not staged.is_dir():
        return
    if final.is_dir():
        old = staging / f"{part.table}.{part.hour}.old"
        shutil.rmtree(old, ignore_errors=True)
        staging.mkdir(parents=True, exist_ok=True)
        final.rename(old)
    if has_rows:
        final.parent.mkdir(parents=True, exist_ok=True)
        staged.rename(final)
    if final.parent.is_dir():
        sync_folder(final.parent)


def _sync_files(folder: Path) -> None:
    """Make everything under *folder* durable, before the plan refers to it."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(parent, name), "rb") as stream:
                os.fsync(stream.fileno())
        sync_folder(Path(parent))


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """All tables at one moment; ``tables`` by name, rows ordered by hour."""

    manifests: dict[Hour, Manifest]
    tables: dict[str, pa.Table]


def read_tables(root: Path, *, since: Hour | None = None, until: Hour | None = None, names: Collection[str] | None = None) -> TableSnapshot:
    """Return the tables *names* under *root* (None: all), from the hour *since* to the hour *until*, inclusive.

    Raises:
        TablesError: there are no tables, a publication was interrupted and this user cannot finish it, or a file is damaged.
    """
    _finish_what_was_begun(root)
    with locked(root, shared=True):
        manifests = {
            hour: manifest
            for hour, manifest in read_manifests(root).items()
            if (since is None or since <= hour) and (until is None or hour <= until)
        }
        chosen = [table for table in TABLES if names is None or table.name in names]
        return TableSnapshot(manifests, {table.name: _read_table(root, table, manifests) for table in chosen})


def _finish_what_was_begun(root: Path) -> None:
    """Finish an interrupted publication."""
    if is_interrupted(root):
        try:
            finish_publication(root)
        except (OSError, TablesError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise TablesError(root, f"publication of the tables was interrupted: {reason}. Run sbus-pipeline again") from None


def _read_table(root: Path, table: Table, hours: Collection[Hour]) -> pa.Table:
    """Return the rows of *hours* of one table."""
    schema = table.arrow_schema()
    parts = [_read_hour(path, table, hour, schema) for hour in sorted(hours) for path in _files(Part(table.name, hour).final(root))]
    return pa.concat_tables(parts) if parts else pa.Table.from_pylist([], schema=schema)


def _files(folder: Path) -> list[Path]:
    """Return the files of one hour, none if it has no rows."""
    return sorted(folder.glob("[!._]*.parquet"))


def _read_hour(path: Path, table: Table, hour: Hour, schema: pa.Schema) -> pa.Table:
    """Return the rows of one file, with date and hour."""
    try:
        with pq.ParquetFile(path) as file:
            found = file.read(columns=list(table.names))
        rows = found.num_rows
        for name, value in (("date", hour.date), ("hour", hour.hour)):
            field = schema.field(name)
            found = found.append_column(field, pa.repeat(pa.scalar(value, field.type), rows))
        return found.select(schema.names).cast(schema)
    except (pa.ArrowException, OSError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TablesError(path, f"cannot read file: {reason}") from None
