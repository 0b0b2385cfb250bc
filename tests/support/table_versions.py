"""Versions of small tables, told apart by a number in each row, for tests of their publication."""

from __future__ import annotations

from collections.abc import Sequence

from sbus_archive.storage.location import ArchivePath
from sbus_archive.tables.hours import Hour, Manifest
from sbus_archive.tables.publication import TableWriter
from sbus_archive.tables.schema import RELAY, USERS, Table
from sbus_archive.tables.storage import read_tables
from tests.support.published_tables import replace_rows

HOUR = Hour("2026-11-20", 7)
LATER = HOUR.following

Seen = tuple[list[int], list[int], list[int]]
"""The versions of the hours' users, relay, and manifests."""

FIRST: Seen = ([1, 1], [1, 1], [1, 1])
SECOND: Seen = ([2, 2], [2], [2, 2])


def open_writer(root: ArchivePath) -> TableWriter:
    """Return a writer that is ready to replace hours."""
    writer = TableWriter(root)
    writer.prepare()
    return writer


def replace_version(writer: TableWriter, table: Table, hours: Sequence[Hour], number: int) -> None:
    """Replace *hours* of *table* by a row for each hour."""
    rows = [{"host": "alpha", table.names[-1]: number, "date": hour.date, "hour": hour.hour} for hour in sorted(hours)]
    replace_rows(writer, table, hours, rows)


def publish_version(root: ArchivePath, number: int, hours: Sequence[Hour] = (HOUR, LATER)) -> None:
    """Publish a version of two tables; the earlier hour's relay has no rows from version 2 on."""
    writer = open_writer(root)
    replace_version(writer, USERS, hours, number)
    replace_version(writer, RELAY, [hour for hour in hours if number == 1 or hour != HOUR], number)
    if number != 1 and HOUR in hours:
        writer.replace(RELAY.name, [HOUR], [])
    writer.publish([Manifest(hour, number, ()) for hour in hours])
    writer.maintain()


def visible(root: ArchivePath) -> Seen:
    """Return what a reader sees."""
    found = read_tables(root)
    users, relay = (found.tables[table.name].column(table.names[-1]).to_pylist() for table in (USERS, RELAY))
    return users, relay, [manifest.made for manifest in found.manifests.values()]
