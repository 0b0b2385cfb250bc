"""All tables are read at one moment, hour by hour; a damaged file is named."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from sbusd.archive.files import TablesError
from sbusd.archive.tables.hours import Hour
from sbusd.archive.tables.publication import TableWriter
from sbusd.archive.tables.schema import TABLES, Table
from sbusd.archive.tables.storage import read_manifests, read_tables
from tests.support.table_versions import HOUR, LATER, publish_version


def test_a_folder_without_tables_is_named(tmp_path: Path) -> None:
    with pytest.raises(TablesError, match=r"no tables found\. Run: sbusctl report --now"):
        read_tables(tmp_path)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_without_rows_has_its_columns_for_any_program(tmp_path: Path, table: Table) -> None:
    TableWriter(tmp_path)
    found = DeltaTable(tmp_path / table.name)
    assert found.to_pyarrow_table().schema.names == table.arrow_schema().names
    assert found.metadata().partition_columns == ["date"]


def test_the_files_are_those_of_a_partitioned_data_set(tmp_path: Path) -> None:
    publish_version(tmp_path, 1)
    found = ds.dataset(DeltaTable(tmp_path / "users").file_uris(), partitioning="hive", partition_base_dir=str(tmp_path / "users"))
    assert found.to_table().column("lost").to_pylist() == [1, 1]


def test_all_tables_are_there_without_rows_too(tmp_path: Path) -> None:
    TableWriter(tmp_path)
    found = read_tables(tmp_path)
    assert {name: table.schema for name, table in found.tables.items()} == {table.name: table.arrow_schema() for table in TABLES}
    assert found.manifests == read_manifests(tmp_path) == {}


@pytest.mark.parametrize(
    ("since", "until", "hours"), [(None, HOUR, [7]), (LATER, None, [8]), (HOUR, LATER, [7, 8]), (Hour("2027-01-01", 0), None, [])]
)
def test_a_period_is_read(tmp_path: Path, since: Hour | None, until: Hour | None, hours: list[int]) -> None:
    publish_version(tmp_path, 1)
    found = read_tables(tmp_path, since=since, until=until, names=["users"])
    assert [row["hour"] for row in found.tables["users"].to_pylist()] == [hour.hour for hour in found.manifests] == hours
    assert set(found.tables) == {"users"}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    publish_version(tmp_path, 1)
    (path,) = (tmp_path / "users").glob("date=*/*.parquet")
    path.write_bytes(b"PAR1")
    with pytest.raises(TablesError, match=r"users: cannot read table: .*\.parquet") as caught:
        read_tables(tmp_path)
    assert path.name in str(caught.value)
    path.unlink()
    with pytest.raises(TablesError, match=rf"users: cannot read table: .*{path.name}"):
        read_tables(tmp_path)
