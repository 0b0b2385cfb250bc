"""All tables are read at one moment, hour by hour, by other programs too; a damaged file is named."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from sbus_archive.storage.files import TablesError
from sbus_archive.storage.store import LocalStore
from sbus_archive.tables import storage
from sbus_archive.tables.data_files import folder_of
from sbus_archive.tables.hours import MANIFESTS, Hour, Manifest
from sbus_archive.tables.publication import TableWriter
from sbus_archive.tables.schema import TABLES, Table
from sbus_archive.tables.storage import open_published, read_hours, read_tables, write_manifests
from tests.support.skips import require
from tests.support.table_versions import HOUR, LATER, open_writer, publish_version


def test_a_folder_without_tables_is_named(tmp_path: Path) -> None:
    with pytest.raises(TablesError, match=r"no tables found\. Run: sbusctl report --now"):
        read_tables(tmp_path)


@pytest.mark.parametrize("table", TABLES)
def test_a_table_without_rows_has_its_columns_for_any_program(tmp_path: Path, table: Table) -> None:
    open_writer(tmp_path)
    found = DeltaTable(tmp_path / table.name)
    assert [field.name for field in found.schema().fields] == table.arrow_schema().names
    assert found.metadata().partition_columns == ["date", "hour"]


def test_the_files_are_those_of_a_partitioned_data_set(tmp_path: Path) -> None:
    publish_version(tmp_path, 1)
    found = pq.read_table(tmp_path / "users", columns=["lost"], partitioning="hive")
    assert found.column("lost").to_pylist() == [1, 1]


def test_duckdb_reads_the_tables(tmp_path: Path) -> None:
    require(importlib.util.find_spec("duckdb") is not None, "needs DuckDB: pip install duckdb", could_run=True)
    import duckdb

    publish_version(tmp_path, 1)
    publish_version(tmp_path, 2)
    files = DeltaTable(tmp_path / "users").file_uris()
    found = duckdb.sql(f"select hour, lost from read_parquet({files!r}, hive_partitioning = true) order by hour")
    assert found is not None
    assert found.fetchall() == [(HOUR.hour, 2), (LATER.hour, 2)]


def test_polars_reads_the_tables(tmp_path: Path) -> None:
    require(importlib.util.find_spec("polars") is not None, "needs polars: pip install polars", could_run=True)
    import polars as pl

    publish_version(tmp_path, 1)
    before = DeltaTable(tmp_path / "hours").transaction_version("users")
    publish_version(tmp_path, 2)
    assert pl.scan_delta(str(tmp_path / "users")).sort("hour").collect()["lost"].to_list() == [2, 2]
    assert pl.read_delta(str(tmp_path / "users"), version=before)["lost"].to_list() == [1, 1]


def test_all_tables_are_there_without_rows_too(tmp_path: Path) -> None:
    open_writer(tmp_path)
    found = read_tables(tmp_path)
    assert {name: table.schema for name, table in found.tables.items()} == {table.name: table.arrow_schema() for table in TABLES}
    assert (found.manifests, read_hours(tmp_path)) == ({}, [])


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
    (path,) = (tmp_path / "users" / folder_of(HOUR)).iterdir()
    path.write_bytes(b"PAR1")
    with pytest.raises(TablesError, match=rf"{path.name}: cannot read file: ") as caught:
        read_tables(tmp_path)
    assert "\n" not in str(caught.value)
    path.unlink()
    with pytest.raises(TablesError, match=rf"{path.name}: cannot read file: "):
        read_tables(tmp_path)
    # Other hours can be read.
    assert read_tables(tmp_path, since=LATER).tables["users"].num_rows == 1


HOURS = [HOUR]
for _ in range(9):
    HOURS.append(HOURS[-1].following)


def publish(root: Path) -> None:
    """Publish the hours; every third one lacks segments."""
    TableWriter(root).publish([Manifest(hour, 1, (), absent=("a", "b") * (not number % 3)) for number, hour in enumerate(HOURS)])


def damage(root: Path, hour: Hour) -> None:
    """Overwrite the file of the manifest of *hour*."""
    (path,) = (root / MANIFESTS / folder_of(hour)).iterdir()
    path.write_bytes(b"")


def test_incomplete_hours_are_known_without_reading_a_manifest(tmp_path: Path) -> None:
    publish(tmp_path)
    for hour in HOURS:
        damage(tmp_path, hour)
    found = open_published(tmp_path)
    assert found.hours() == HOURS
    assert found.incomplete_hours() == set(HOURS[::3])


def test_only_the_wanted_manifests_are_read(tmp_path: Path) -> None:
    publish(tmp_path)
    for hour in HOURS[2:]:
        damage(tmp_path, hour)
    found = open_published(tmp_path).manifests_of([HOURS[1], HOURS[0], Hour("2030-01-01", 1)])
    assert list(found) == HOURS[:2]
    assert found[HOURS[0]] == Manifest(HOURS[0], 1, (), absent=("a", "b"))
    assert open_published(tmp_path).manifests_of([]) == {}
    with pytest.raises(TablesError, match="cannot read file"):
        open_published(tmp_path).manifests_of([HOURS[2]])


def test_a_manifest_of_another_version_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbus_archive.tables.hours.VERSION", 99)
    publish(tmp_path)
    monkeypatch.undo()
    with pytest.raises(TablesError, match=r"hours: unsupported version 99: this program has \d+\. Run sbus-pipeline --rebuild"):
        open_published(tmp_path).manifests_of(HOURS)


def test_a_large_manifest_is_not_in_the_log(tmp_path: Path) -> None:
    (file,) = write_manifests(LocalStore(tmp_path), [Manifest(HOUR, 1, (), absent=tuple(f"segment {number}" for number in range(1000)))])
    assert len(file.statistics) < 300
    assert storage.HOURS_SCHEMA.names == ["manifest", "absent", "date", "hour"]
