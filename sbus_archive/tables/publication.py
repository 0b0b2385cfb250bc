"""Replaces hours of the tables and publishes them, all at once or not at all. Spec: sbus-pipeline(8).

Each replacement is a commit of one Delta table, which readers do not see. The commit of the table ``hours`` publishes them: see
:mod:`sbus_archive.tables.storage`. Commits that a killed run left unpublished are undone when the tables are opened for the next run.

A writer opens each table once and never reads its log again, and its commits are not retried. So each commit fails if another program
has changed the table in the meantime, and no run publishes what another one has written in part.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from deltalake import DeltaTable, Transaction

from sbus_archive.storage.files import TablesError
from sbus_archive.storage.location import ArchivePath, table_uri
from sbus_archive.storage.store import store_of
from sbus_archive.tables.data_files import DataFile, remove_leftovers
from sbus_archive.tables.delta import (
    ONCE,
    add_columns,
    create_table,
    errors_of,
    is_due,
    open_table,
    remove_old_files,
    replace_files,
    shorten_log,
    sync_log,
)
from sbus_archive.tables.hours import MANIFESTS, Hour, Manifest
from sbus_archive.tables.schema import TABLES
from sbus_archive.tables.storage import HOURS_SCHEMA, PublishedHours, write_manifests

_ORIGIN = "sbus.origin"
"""A property of the table of manifests, in JSON: what the tables were computed from."""

_SCHEMAS = {table.name: table.arrow_schema() for table in TABLES}


class TableWriter:
    """The tables at one location, opened for one run."""

    def __init__(self, root: ArchivePath) -> None:
        """Open the table of manifests; create it if it is missing. The others are opened by :meth:`prepare`.

        Raises:
            TablesError: the log is damaged.
        """
        self.root = root
        self._hours = open_table(root, MANIFESTS) or create_table(root, MANIFESTS, HOURS_SCHEMA)
        self._published = PublishedHours(root, self._hours)
        self._tables: dict[str, DeltaTable] = {}
        self._begun: dict[str, int] = {MANIFESTS: self._hours.version()}
        """The versions that this run has found."""

    @property
    def origin(self) -> object:
        """What the tables were computed from, as it was stored; None if nothing was."""
        text = self._hours.metadata().configuration.get(_ORIGIN)
        return None if text is None else json.loads(text)

    def store_origin(self, origin: object) -> None:
        """Store *origin*, a JSON value, if it is not stored. Raises TablesError."""
        if self.origin == origin:
            return
        with errors_of(self.root, MANIFESTS, "write"):
            # The log is JSON itself; the library reads this value again.
            self._hours.alter.set_table_properties({_ORIGIN: json.dumps(origin)}, raise_if_not_exists=False, commit_properties=ONCE)
            sync_log(self.root, MANIFESTS, self._hours)

    def incomplete_hours(self) -> set[Hour]:
        """Return the published hours whose manifest lists absent segments. No manifest is read."""
        return self._published.incomplete_hours()

    def manifests_of(self, hours: Collection[Hour]) -> dict[Hour, Manifest]:
        """Return the manifests of those of *hours* that are published, in order. Raises TablesError, StorageError."""
        return self._published.manifests_of(hours)

    def prepare(self) -> None:
        """Open all tables, create missing ones, undo unpublished commits, and add new columns. Afterwards hours can be replaced.

        Raises:
            TablesError: a table is damaged or of another type, or another program writes the tables.
            OSError: the directory cannot be written.
        """
        if self._tables:
            return
        if isinstance(self.root, Path):
            remove_leftovers(self.root)
        for name, schema in _SCHEMAS.items():
            self._tables[name] = open_table(self.root, name) or create_table(self.root, name, schema)
            self._begun[name] = self._tables[name].version()
        changed = [self._restore(name) | self._evolve(name) for name in self._tables]
        if any(changed):
            self.publish([])

    def replace(self, name: str, hours: Collection[Hour], files: Sequence[DataFile]) -> None:
        """Replace the *hours* of the table *name* by *files*, which exist and have rows of these hours only. Not visible until published.

        Requires :meth:`prepare`. Threads can replace hours of different tables.

        Raises:
            TablesError: the table cannot be written, or another program has changed it.
        """
        replace_files(self.root, name, self._tables[name], hours, [file for file in files if file.rows])

    def publish(self, manifests: Iterable[Manifest]) -> None:
        """Publish all replacements, with the *manifests* of their hours.

        Raises:
            TablesError, OSError: the table of manifests cannot be written, or another program has changed it.
            StorageError: the object store cannot be used.
        """
        by_hour = {manifest.hour: manifest for manifest in manifests}
        # With its own version, each publication conflicts with any other one.
        versions = {MANIFESTS: self._hours.version(), **{name: table.version() for name, table in self._tables.items()}}
        transactions = [Transaction(name, version) for name, version in versions.items()]
        files = write_manifests(store_of(self.root), [manifest for _, manifest in sorted(by_hour.items())])
        replace_files(self.root, MANIFESTS, self._hours, set(by_hour), files, transactions=transactions)

    def maintain(self) -> None:
        """Remove old files of tables with many commits; see :mod:`sbus_archive.tables.delta`. Everything is published.

        Raises:
            TablesError, OSError: a table cannot be written.
        """
        due = [name for name, table in self._tables.items() if is_due(self._begun[name], table.version())]
        for name in due:
            with errors_of(self.root, name, "write"):
                remove_old_files(self._tables[name])
                sync_log(self.root, name, self._tables[name])
        if due:
            self.publish([])
        # Not before its version is published: otherwise the log of the published version could be removed.
        for name in due:
            with errors_of(self.root, name, "write"):
                shorten_log(self._tables[name])
        if is_due(self._begun[MANIFESTS], self._hours.version()):
            with errors_of(self.root, MANIFESTS, "write"):
                remove_old_files(self._hours)
                shorten_log(self._hours)
        self._begun = {name: table.version() for name, table in (*self._tables.items(), (MANIFESTS, self._hours))}

    def _restore(self, name: str) -> bool:
        """Undo commits of a table that were not published; return whether there were any."""
        table, published = self._tables[name], self._published.version_of(name) or 0
        if table.version() < published:
            uri = table_uri(self.root, name)
            raise TablesError(uri, f"version {published} is missing. Move {self.root} away and run sbus-pipeline again")
        if table.version() == published:
            return False
        with errors_of(self.root, name, "write"):
            table.restore(published, commit_properties=ONCE)
            sync_log(self.root, name, table)
        return True

    def _evolve(self, name: str) -> bool:
        """Add columns that the table does not have; return whether there were any."""
        try:
            changed = add_columns(self._tables[name], _SCHEMAS[name])
        except ValueError as error:
            raise TablesError(table_uri(self.root, name), f"{error}. Move {self.root} away and run again") from None
        if changed:
            sync_log(self.root, name, self._tables[name])
        return changed
