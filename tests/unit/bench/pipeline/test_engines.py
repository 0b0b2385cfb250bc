"""The made-up archive is one, and the engines that Spark is compared with make what plain Python makes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sbus_archive.record.schema import Row, rows_of
from sbus_archive.record.segments import RecordReader
from sbus_archive.tables.schema import TABLES
from tests.bench.pipeline import duckdb_tables, polars_tables
from tests.bench.pipeline.archive import HOSTS, make_archive, make_part
from tests.bench.pipeline.engines import COMPARED, ENGINES
from tests.support.tallies import tables_of

ROWS = 6_000

COLUMNS = {
    "traffic": ("messages", "bytes", "recipients", "queued", "discarded", "undeliverable"),
    "users": ("connections", "messages", "bytes", "recipients", "requests", "replies", "denials"),
    "calls": ("calls", "answered", "errors", "timeouts", "unanswered", "undelivered", "latency_max_us"),
    "flows": ("from_uid", "to_uid", "deliveries", "bytes"),
    "losses": ("uid", "events", "count"),
    "security": ("uid", "events"),
    "relay": ("attempts",),
}
"""Columns to compare."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive") / "archive"
    make_archive(folder, ROWS)
    return folder


@pytest.fixture(scope="module")
def record(archive: Path) -> dict[str, list[Row]]:
    """The rows of each host."""
    found: dict[str, list[Row]] = {host: [] for host in HOSTS}
    for entry in RecordReader(archive).entries():
        RecordReader(archive).verify(entry)
        found[entry.host] += rows_of(RecordReader(archive).read(entry))
    return found


def test_it_is_an_archive_of_that_size(record: dict[str, list[Row]]) -> None:
    rows = [row for each in record.values() for row in each]
    assert len(rows) == len({row.seq for row in rows}) == ROWS
    calls = [row.call_role for row in rows if row.call_id is not None]
    assert 0.35 < len(calls) / sum(row.kind == "message" for row in rows) < 0.45
    assert 0.9 < calls.count("reply") / calls.count("request") < 1


def test_a_part_is_an_archive_too(archive: Path, tmp_path: Path) -> None:
    count = make_part(archive, tmp_path / "part", ROWS // 4)
    entries = RecordReader(tmp_path / "part").entries()
    assert sum(entry.rows for entry in entries) == count == ROWS // 4
    for entry in entries:
        RecordReader(tmp_path / "part").verify(entry)


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_make_what_plain_python_makes(archive: Path, record: dict[str, list[Row]], tmp_path: Path, engine: str) -> None:
    modules: dict[str, Callable[[Path, Path], None]] = {"duckdb": duckdb_tables.write_tables, "polars": polars_tables.write_tables}
    modules[engine](archive, tmp_path)
    truth = tables_of(record)
    for table in COMPARED[engine]:
        columns = COLUMNS[table]
        names = next(each for each in TABLES if each.name == table).names
        made = pq.read_table(tmp_path / f"{table}.parquet")
        assert made.num_rows == len(truth[table])
        for column in columns:
            place = 2 + names.index(column)  # behind date and hour
            expected = sorted(_number(line[place]) for line in truth[table])
            assert sorted(value or 0 for value in made.column(column).to_pylist()) == expected, (table, column)


def _number(value: object) -> int:
    """Return a number of a table; nothing is nought."""
    return value if isinstance(value, int) else 0
