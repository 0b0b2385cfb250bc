"""The index entries that earlier runs have seen, in a Delta table: their file names as JSON strings.

A name is added after the tables of its hours were published. A run that is killed before that adds none, so the next run computes these
hours again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import pyarrow as pa
from deltalake import write_deltalake

from sbusd.archive.record.index import hour_of_entry
from sbusd.archive.tables.delta import DATE, ONCE, WITHOUT_HOOKS, create_table, errors_of, files_of, open_table, sync_table
from sbusd.archive.tables.location import Location
from sbusd.archive.tables.maintenance import is_due, maintain

KNOWN_ENTRIES = "entries"
"""The name of the table."""

_SCHEMA = pa.schema([pa.field("name", pa.string()), pa.field(DATE, pa.string())])


class KnownEntries:
    """The names in the table at *location*; it is created if it does not exist."""

    def __init__(self, location: Location) -> None:
        """Read the table. Raises TablesError, OSError."""
        self._location = location
        self._table = open_table(location, KNOWN_ENTRIES) or create_table(location, KNOWN_ENTRIES, _SCHEMA)
        with errors_of(location, KNOWN_ENTRIES, "read"):
            self._names = set(self._table.to_pyarrow_dataset().to_table(columns=["name"]).column("name").to_pylist())

    def new_among(self, names: Iterable[str]) -> list[str]:
        """Return those of *names* that are not known."""
        return [name for name in names if json.dumps(name) not in self._names]

    def add(self, names: Iterable[str]) -> None:
        """Add *names*; they are durable on return. Raises TablesError, OSError."""
        rows = [{"name": json.dumps(name), DATE: hour[0]} for name in names if (hour := hour_of_entry(name)) is not None]
        if not rows:
            return
        before, known = self._table.version(), files_of(self._table)
        with errors_of(self._location, KNOWN_ENTRIES, "write"):
            write_deltalake(
                self._table,
                pa.Table.from_pylist(rows, _SCHEMA),
                mode="append",
                commit_properties=ONCE,
                post_commithook_properties=WITHOUT_HOOKS,
            )
            sync_table(self._location, self._table, known)
            if is_due(before, self._table.version()):
                maintain(self._table)
                self._table.create_checkpoint()
                self._table.cleanup_metadata()
        self._names.update(row["name"] for row in rows)

    def forget(self) -> None:
        """Remove all names. Raises TablesError, OSError."""
        if not self._names:
            return
        with errors_of(self._location, KNOWN_ENTRIES, "write"):
            self._table.delete(commit_properties=ONCE, post_commithook_properties=WITHOUT_HOOKS)
            sync_table(self._location, self._table, set())
        self._names.clear()
