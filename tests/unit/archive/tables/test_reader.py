"""Tables are read hour by hour, and a damaged file is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.archive.errors import TablesError
from sbusd.archive.tables.hours import Hour
from sbusd.archive.tables.publication import prepare_folder
from sbusd.archive.tables.reader import read_tables
from sbusd.archive.tables.schema import TABLES, USERS
from tests.unit.archive.tables.test_publication import HOUR, LATER, publish_version


def test_all_tables_are_there_without_rows_too(tmp_path: Path) -> None:
    prepare_folder(tmp_path)
    found = read_tables(tmp_path)
    assert {name: table.schema for name, table in found.tables.items()} == {table.name: table.arrow_schema() for table in TABLES}
    assert found.manifests == {}


@pytest.mark.parametrize(
    ("since", "until", "hours"), [(None, HOUR, [7]), (LATER, None, [8]), (HOUR, LATER, [7, 8]), (Hour("2027-01-01", 0), None, [])]
)
def test_a_period_is_read(tmp_path: Path, since: Hour | None, until: Hour | None, hours: list[int]) -> None:
    prepare_folder(tmp_path)
    publish_version(tmp_path, 1)
    found = read_tables(tmp_path, since=since, until=until, names=["users"])
    assert [row["hour"] for row in found.tables["users"].to_pylist()] == [hour.hour for hour in found.manifests] == hours
    assert set(found.tables) == {"users"}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    prepare_folder(tmp_path)
    publish_version(tmp_path, 1)
    path = tmp_path / USERS.name / HOUR.folder / "part-0.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(TablesError, match=r"part-0\.parquet: cannot read file"):
        read_tables(tmp_path)
