"""Replaces hours of the tables and publishes them, all at once or not at all. Spec: sbus-pipeline(8).

Each replacement is a commit of one Delta table, which readers do not see. The commit of the table ``hours`` publishes them: see
:mod:`sbusd.archive.tables.storage`. Commits that a killed run left unpublished are undone when the tables are opened for the next run.

A writer opens all tables once and never reads their logs again, and its commits are not retried. So each commit fails if another program
has changed the table in the meantime, and no run publishes what another one has written in part.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake

from sbusd.archive.files import TablesError
from sbusd.archive.tables.delta import DATE, ONCE, WITHOUT_HOOKS, add_columns, create_table, errors_of, files_of, open_table, sync_table
from sbusd.archive.tables.hours import MANIFESTS, Hour, Manifest
from sbusd.archive.tables.location import Location, table_uri
from sbusd.archive.tables.maintenance import is_due, maintain
from sbusd.archive.tables.old_layout import check_layout
from sbusd.archive.tables.schema import TABLES
from sbusd.archive.tables.storage import HOURS_SCHEMA, manifests_of

_ZSTD = WriterProperties(compression="ZSTD")

_ORIGIN = "sbus.origin"
"""A property of the table of manifests, in JSON: what the tables were computed from."""

_SCHEMAS = {table.name: table.arrow_schema() for table in TABLES}


class TableWriter:
    """The tables at one location, opened for one run."""

    def __init__(self, location: Location) -> None:
        """Open the tables, create missing ones, undo unpublished commits, and add new columns.

        Raises:
            TablesError: they have an old layout, a table is damaged or of another type, or another program writes the tables.
            OSError: the directory cannot be written.
        """
        self._location = location
        if isinstance(location, Path):
            check_layout(location)
        self._hours = open_table(location, MANIFESTS) or create_table(location, MANIFESTS, HOURS_SCHEMA)
        self._tables = {name: open_table(location, name) or create_table(location, name, schema) for name, schema in _SCHEMAS.items()}
        self._begun = self._versions()
        changed = [self._restore(name) | self._evolve(name) for name in self._tables]
        if any(changed):
            self.publish([])

    @property
    def origin(self) -> object:
        """What the tables were computed from, as it was stored; None if nothing was."""
        text = self._hours.metadata().configuration.get(_ORIGIN)
        return None if text is None else json.loads(text)

    def store_origin(self, origin: object) -> None:
        """Store *origin*, a JSON value, if it is not stored. Raises TablesError."""
        if self.origin == origin:
            return
        with errors_of(self._location, MANIFESTS, "write"):
            # The log is JSON itself; the library reads this value again.
            self._hours.alter.set_table_properties({_ORIGIN: json.dumps(origin)}, raise_if_not_exists=False, commit_properties=ONCE)

    def manifests(self) -> dict[Hour, Manifest]:
        """Return the manifests of all published hours, in order. Raises TablesError."""
        return manifests_of(self._location, self._hours)

    def replace(self, name: str, hours: Sequence[Hour], rows: Iterable[pa.RecordBatch]) -> int:
        """Replace the *hours* of the table *name* by *rows*, which are all within them; return their number. Not visible until published.

        Raises:
            TablesError: the table cannot be written, or another program has changed it.
            Exception: what *rows* raises.
        """
        table, source = self._tables[name], _Source(iter(rows))
        if (first := source.take()) is None and not self._has_rows(name, hours):
            return 0
        try:
            with errors_of(self._location, name, "write"):
                self._write(table, pa.RecordBatchReader.from_batches(_SCHEMAS[name], source.batches(first)), hours)
        except TablesError:
            if source.error is not None:
                raise source.error from None
            raise
        return source.rows

    def publish(self, manifests: Sequence[Manifest]) -> None:
        """Publish all replacements, with the *manifests* of their hours.

        Raises:
            TablesError, OSError: the table of manifests cannot be written, or another program has changed it.
        """
        properties = CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(name, version) for name, version in self._versions().items()]
        )
        with errors_of(self._location, MANIFESTS, "write"):
            if manifests:
                rows = [{"hour": each.hour.hour, "manifest": json.dumps(each.to_json()), "date": each.hour.date} for each in manifests]
                self._write(
                    self._hours, pa.Table.from_pylist(rows, HOURS_SCHEMA).to_reader(), [each.hour for each in manifests], properties
                )
            else:
                self._hours.create_write_transaction(
                    [], "append", HOURS_SCHEMA, [DATE], commit_properties=properties, post_commithook_properties=WITHOUT_HOOKS
                )
                self._hours.update_incremental()
                sync_table(self._location, self._hours, set())

    def maintain(self) -> None:
        """Merge and remove files of tables with many commits; see :mod:`sbusd.archive.tables.maintenance`. Everything is published.

        Raises:
            TablesError, OSError: a table cannot be written.
        """
        due = [name for name, table in self._tables.items() if is_due(self._begun[name], table.version())]
        for name in due:
            with errors_of(self._location, name, "write"):
                maintain(self._tables[name])
        if due:
            self.publish([])
        for name in due:
            with errors_of(self._location, name, "write"):
                self._tables[name].create_checkpoint()
                self._tables[name].cleanup_metadata()
        if due:
            with errors_of(self._location, MANIFESTS, "write"):
                maintain(self._hours)
                self._hours.create_checkpoint()
                self._hours.cleanup_metadata()

    def _versions(self) -> dict[str, int]:
        """Return the version of each table."""
        return {name: table.version() for name, table in self._tables.items()}

    def _restore(self, name: str) -> bool:
        """Undo commits of a table that were not published; return whether there were any."""
        table, published = self._tables[name], self._hours.transaction_version(name) or 0
        if table.version() < published:
            uri = table_uri(self._location, name)
            raise TablesError(uri, f"version {published} is missing. Move {self._location} away and run sbus-pipeline again")
        if table.version() == published:
            return False
        with errors_of(self._location, name, "write"):
            known = files_of(table)
            table.restore(published, commit_properties=ONCE)
            sync_table(self._location, table, known)
        return True

    def _evolve(self, name: str) -> bool:
        """Add columns that the table does not have; return whether there were any."""
        try:
            return add_columns(self._tables[name], _SCHEMAS[name])
        except ValueError as error:
            raise TablesError(table_uri(self._location, name), f"{error}. Move {self._location} away and run again") from None

    def _has_rows(self, name: str, hours: Sequence[Hour]) -> bool:
        """Return whether a table has rows on the days of *hours*."""
        days = sorted({hour.date for hour in hours})
        with errors_of(self._location, name, "read"):
            return bool(self._tables[name].to_pyarrow_dataset().count_rows(filter=pc.field(DATE).isin(days)))

    def _write(self, table: DeltaTable, rows: pa.RecordBatchReader, hours: Sequence[Hour], properties: CommitProperties = ONCE) -> None:
        """Replace *hours* of *table* by *rows*, durably."""
        known = files_of(table)
        write_deltalake(
            table,
            rows,
            mode="overwrite",
            predicate=_predicate(hours),
            writer_properties=_ZSTD,
            commit_properties=properties,
            post_commithook_properties=WITHOUT_HOOKS,
        )
        sync_table(self._location, table, known)


class _Source:
    """Batches of rows, counted. Their exception is kept, because the library would only keep its text."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.rows = 0
        self.error: BaseException | None = None

    def take(self) -> pa.RecordBatch | None:
        """Return the next batch, None at the end."""
        try:
            batch = next(self._batches, None)
        except BaseException as error:
            self.error = error
            raise
        self.rows += batch.num_rows if batch is not None else 0
        return batch

    def batches(self, first: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
        """Return *first* and all others."""
        batch = first
        while batch is not None:
            yield batch
            batch = self.take()


def _predicate(hours: Iterable[Hour]) -> str:
    """Return the SQL condition for the rows of *hours*."""
    by_date: defaultdict[str, list[str]] = defaultdict(list)
    for hour in hours:
        by_date[hour.date].append(str(hour.hour))
    return " OR ".join(f"({DATE} = {_quoted(date)} AND hour IN ({', '.join(found)}))" for date, found in sorted(by_date.items()))


def _quoted(text: str) -> str:
    """Return *text* as a string in SQL."""
    return "'" + text.replace("'", "''") + "'"
