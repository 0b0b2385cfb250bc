"""Hours become visible whole, whenever the program is killed, and are read hour by hour; a damaged file is named."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from sbusd.archive.files import TablesError
from sbusd.archive.tables import storage
from sbusd.archive.tables.hours import Hour, Manifest
from sbusd.archive.tables.schema import RELAY, TABLES, USERS, Table
from sbusd.archive.tables.storage import LOCK, PLAN, Part, finish_publication, locked, prepare_folder, publish, read_tables, write_empty

HOUR = Hour("2026-11-20", 7)
LATER = HOUR.following


class KilledError(BaseException):
    """Simulates SIGKILL."""


def stage(root: Path, name: str, messages: dict[tuple[str, Hour], int]) -> Path:
    """Write rows as Spark does: one for each table and hour, with a number in it to tell versions apart."""
    staging = root / storage.STAGING / name
    staging.mkdir(parents=True)
    for (table, hour), number in messages.items():
        schema = {USERS.name: USERS, RELAY.name: RELAY}[table]
        path = Part(table, hour).staged(staging) / "part-0.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(_table(schema, number), path)
    return staging


def _table(table: Table, number: int) -> pa.Table:
    schema = pa.schema([table.arrow_schema().field(name) for name in table.names])
    return pa.Table.from_pylist([{"host": "alpha", table.names[-1]: number}], schema=schema)


def publish_version(root: Path, number: int, hours: tuple[Hour, ...] = (HOUR, LATER)) -> None:
    """Publish a version of two tables; the earlier hour's relay has no rows from version 2 on."""
    rows = {(table, hour): number for table in (USERS.name, RELAY.name) for hour in hours}
    if number > 1:
        rows.pop((RELAY.name, HOUR), None)
    parts = [Part(table, hour) for table in (USERS.name, RELAY.name) for hour in hours]
    publish(root, stage(root, str(number), rows), parts, [Manifest(hour, number, ()) for hour in hours])


def visible(root: Path) -> tuple[list[int], list[int], list[int]]:
    """Return what a reader sees: the version of each hour's users, relay, and manifest."""
    found = read_tables(root)
    users, relay = (found.tables[table.name].to_pylist() for table in (USERS, RELAY))
    return (
        [row[USERS.names[-1]] for row in users],
        [row[RELAY.names[-1]] for row in relay],
        [manifest.made for manifest in found.manifests.values()],
    )


FIRST = ([1, 1], [1, 1], [1, 1])
SECOND = ([2, 2], [2], [2, 2])


def test_a_version_replaces_another(tmp_path: Path) -> None:
    prepare_folder(tmp_path)
    publish_version(tmp_path, 1)
    assert visible(tmp_path) == FIRST
    publish_version(tmp_path, 2)
    assert visible(tmp_path) == SECOND
    assert list((tmp_path / storage.STAGING).iterdir()) == []


def test_killed_before_any_step_a_reader_sees_one_version_or_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every system call that changes a name is where the program dies once."""
    seen = set()
    for step in range(100):
        root = tmp_path / str(step)
        root.mkdir()
        prepare_folder(root)
        publish_version(root, 1)
        died = _publish_and_die(root, step, monkeypatch)
        seen.add(str(visible(root)))
        assert str(visible(root)) in {str(FIRST), str(SECOND)}, step
        prepare_folder(root)  # the next run
        publish_version(root, 2)
        assert visible(root) == SECOND
        if not died:
            break
    assert seen == {str(FIRST), str(SECOND)}
    assert step > 8


def _publish_and_die(root: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Publish version 2 and die before the change of a name number *step*; return whether there was one."""
    left = step

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            nonlocal left
            if left == 0:
                raise KilledError
            left -= 1
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "replace", "unlink"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        try:
            publish_version(root, 2)
        except KilledError:
            return True
        return False


def test_a_reader_that_may_not_finish_a_publication_gets_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_folder(tmp_path)
    publish_version(tmp_path, 1)
    _publish_and_die(tmp_path, 4, monkeypatch)
    assert (tmp_path / PLAN).exists()

    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("sbusd.archive.tables.storage.finish_publication", refuse)
    with pytest.raises(TablesError, match=r"publication of the tables was interrupted: Permission denied\. Run sbus-pipeline again"):
        read_tables(tmp_path)


def test_publication_waits_for_readers(tmp_path: Path) -> None:
    prepare_folder(tmp_path)
    with locked(tmp_path, shared=True):
        fd = os.open(tmp_path / LOCK, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)
    with locked(tmp_path, shared=False):
        fd = os.open(tmp_path / LOCK, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(fd)


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    prepare_folder(tmp_path)
    (tmp_path / PLAN).write_text('{"staging": 1}')
    with pytest.raises(TablesError, match="invalid plan"):
        finish_publication(tmp_path)


def test_a_folder_without_tables_is_named(tmp_path: Path) -> None:
    with pytest.raises(TablesError, match=r"no tables found\. Run: sbusctl report --now"):
        read_tables(tmp_path)


@pytest.mark.parametrize("table", TABLES)
def test_an_hour_without_rows_has_a_file_with_the_columns(tmp_path: Path, table: Table) -> None:
    prepare_folder(tmp_path)
    staging = tmp_path / storage.STAGING / "1"
    part = Part(table.name, HOUR)
    write_empty(part.staged(staging), table)
    publish(tmp_path, staging, [part], [Manifest(HOUR, 1, ())])
    found = ds.dataset(tmp_path / table.name, partitioning="hive", exclude_invalid_files=True)
    assert set(found.schema.names) == {*table.names, "date", "hour"}
    assert found.count_rows() == read_tables(tmp_path).tables[table.name].num_rows == 0


def test_rows_are_not_replaced_by_an_empty_set(tmp_path: Path) -> None:
    staging = stage(tmp_path, "1", {(USERS.name, HOUR): 7})
    folder = Part(USERS.name, HOUR).staged(staging)
    before = list(folder.iterdir())
    write_empty(folder, USERS)
    assert list(folder.iterdir()) == before


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
