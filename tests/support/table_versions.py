"""Versions of small tables, told apart by a number in each row, for tests of their publication."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from sbusd.archive.tables.hours import Hour, Manifest
from sbusd.archive.tables.location import Location
from sbusd.archive.tables.publication import TableWriter
from sbusd.archive.tables.schema import RELAY, USERS, Table
from sbusd.archive.tables.storage import read_tables

HOUR = Hour("2026-11-20", 7)
LATER = HOUR.following

Seen = tuple[list[int], list[int], list[int]]
"""The versions of the hours' users, relay, and manifests."""

FIRST: Seen = ([1, 1], [1, 1], [1, 1])
SECOND: Seen = ([2, 2], [2], [2, 2])


def rows_of(table: Table, hours: Sequence[Hour], number: int) -> list[pa.RecordBatch]:
    """Return a row for each hour."""
    rows = [{"host": "alpha", table.names[-1]: number, "date": hour.date, "hour": hour.hour} for hour in hours]
    found: list[pa.RecordBatch] = pa.Table.from_pylist(rows, table.arrow_schema()).to_batches()
    return found


def publish_version(root: Location, number: int, hours: Sequence[Hour] = (HOUR, LATER)) -> None:
    """Publish a version of two tables; the earlier hour's relay has no rows from version 2 on."""
    writer = TableWriter(root)
    writer.replace(USERS.name, hours, rows_of(USERS, hours, number))
    writer.replace(RELAY.name, hours, rows_of(RELAY, [hour for hour in hours if number == 1 or hour != HOUR], number))
    writer.publish([Manifest(hour, number, ()) for hour in hours])
    writer.maintain()


def visible(root: Location) -> Seen:
    """Return what a reader sees."""
    found = read_tables(root)
    users, relay = (found.tables[table.name].column(table.names[-1]).to_pylist() for table in (USERS, RELAY))
    return users, relay, [manifest.made for manifest in found.manifests.values()]
