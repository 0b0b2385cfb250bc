"""Hours become visible whole, whenever the program is killed; another writer is an error; new columns are added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from sbus_archive.storage.files import TablesError
from sbus_archive.tables import publication, storage
from sbus_archive.tables.data_files import folder_of
from sbus_archive.tables.delta import LOG, open_table
from sbus_archive.tables.hours import Manifest
from sbus_archive.tables.publication import TableWriter
from sbus_archive.tables.schema import RELAY, TABLES, USERS, Column, Type
from sbus_archive.tables.storage import read_tables
from tests.support.table_versions import FIRST, HOUR, LATER, SECOND, open_writer, publish_version, replace_version, visible


class KilledError(BaseException):
    """Simulates SIGKILL."""


def test_a_version_replaces_another(tmp_path: Path) -> None:
    publish_version(tmp_path, 1)
    assert visible(tmp_path) == FIRST
    publish_version(tmp_path, 2)
    assert visible(tmp_path) == SECOND


def test_killed_before_or_after_any_commit_a_reader_sees_one_version_or_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of the library that commits is where the program dies once, before and after it."""
    seen = set()
    for step in range(100):
        root = tmp_path / str(step)
        publish_version(root, 1)
        died = _publish_and_die(root, step, monkeypatch)
        seen.add(str(visible(root)))
        assert visible(root) in (FIRST, SECOND), step
        if step % 4 == 3:  # the next run is killed too, at another step
            _publish_and_die(root, step // 4, monkeypatch)
            assert visible(root) in (FIRST, SECOND), step
        assert {name: table.num_rows for name, table in read_tables(root).tables.items() if table.num_rows} in (
            {"users": 2, "relay": 2},
            {"users": 2, "relay": 1},
        )
        open_writer(root)  # the next run has nothing to publish
        assert visible(root) in (FIRST, SECOND), step
        publish_version(root, 2)
        assert visible(root) == SECOND
        if not died:
            break
    assert seen == {str(FIRST), str(SECOND)}
    assert step >= 6


def _publish_and_die(root: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Publish version 2 and die before (even) or after (odd) commit number *step* / 2; return whether there was one."""
    left = step

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            nonlocal left
            _die_if(left == 0)
            result = real(*arguments, **options)
            _die_if(left == 1)
            left -= 2
            return result

        return call

    with monkeypatch.context() as patch:
        for name in ("restore", "create_write_transaction", "vacuum", "create_checkpoint"):
            patch.setattr(DeltaTable, name, counted(getattr(DeltaTable, name)))
        try:
            publish_version(root, 2)
        except KilledError:
            return True
        return False


def _die_if(condition: bool) -> None:
    if condition:
        raise KilledError


def test_rows_of_a_killed_run_are_not_published_by_the_next_one(tmp_path: Path) -> None:
    """Not with other hours either."""
    publish_version(tmp_path, 1, (HOUR,))
    killed = open_writer(tmp_path)
    replace_version(killed, USERS, [HOUR], 7)
    writer = open_writer(tmp_path)
    replace_version(writer, USERS, [LATER], 2)
    writer.publish([Manifest(LATER, 2, ())])
    assert visible(tmp_path) == ([1, 2], [1], [1, 2])
    # A program that reads the newest version of one table does not see them either.
    assert sorted(DeltaTable(tmp_path / "users").to_pyarrow_table().column("lost").to_pylist()) == [1, 2]


def test_a_second_writer_publishes_nothing_of_the_first(tmp_path: Path) -> None:
    open_writer(tmp_path)
    first, second = open_writer(tmp_path), open_writer(tmp_path)
    replace_version(first, USERS, [HOUR], 1)
    with pytest.raises(TablesError, match=r"users: another program has changed the table .* Run again"):
        replace_version(second, USERS, [LATER], 2)
    first.publish([Manifest(HOUR, 1, ())])
    with pytest.raises(TablesError, match="hours: another program has changed the table"):
        second.publish([Manifest(LATER, 2, ())])
    # A third one that starts during a run undoes what is not published, and that run fails.
    replace_version(first, USERS, [LATER], 3)
    third = open_writer(tmp_path)
    with pytest.raises(TablesError, match="hours: another program has changed the table"):
        first.publish([Manifest(LATER, 3, ())])
    replace_version(third, USERS, [LATER], 4)
    third.publish([Manifest(LATER, 4, ())])
    assert visible(tmp_path) == ([1, 4], [], [1, 4])


@pytest.mark.slow
def test_many_days_are_replaced_at_once(tmp_path: Path) -> None:
    # The hours of three days, and one of each of sixty: hours are compared as sets, without a limit to their number.
    hours = [HOUR]
    while len(hours) < 60:
        hours.append(replace(hours[-1].following, date=hours[-1].following.date))
    days = [replace(HOUR, date=f"{1000 + number}-01-01") for number in range(60)]
    publish_version(tmp_path, 1, [*hours, *days])
    publish_version(tmp_path, 3, [*hours, *days])
    assert visible(tmp_path)[0] == [3] * 120
    # One commit for each table, with exactly these hours.
    publish_version(tmp_path, 4, hours[::2])
    assert sorted(visible(tmp_path)[0]) == [3] * 90 + [4] * 30


def test_a_new_column_is_added_to_an_old_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_version(tmp_path, 1)
    wider = replace(USERS, columns=(*USERS.columns, Column("fresh", Type.COUNT, "a new column")))
    tables = tuple(wider if table is USERS else table for table in TABLES)
    monkeypatch.setattr(storage, "TABLES", tables)
    monkeypatch.setattr(publication, "_SCHEMAS", {table.name: table.arrow_schema() for table in tables})

    def fresh() -> list[Any]:
        found: list[Any] = read_tables(tmp_path).tables["users"].column("fresh").to_pylist()
        return found

    # A reader is newer than the tables.
    assert fresh() == [None, None]
    writer = open_writer(tmp_path)
    assert fresh() == [None, None]
    replace_version(writer, wider, [LATER], 8)
    writer.publish([Manifest(LATER, 8, ())])
    assert fresh() == [None, 8]
    monkeypatch.undo()
    # And older than them.
    assert visible(tmp_path) == ([1, None], [1, 1], [1, 8])


def test_a_column_of_another_type_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_version(tmp_path, 1)
    columns = tuple(replace(column, type=Type.TEXT) if column.name == "lost" else column for column in USERS.columns)
    monkeypatch.setitem(publication._SCHEMAS, "users", replace(USERS, columns=columns).arrow_schema())
    with pytest.raises(TablesError, match=rf"the column lost has the type .* Move {tmp_path} away"):
        open_writer(tmp_path)


def test_a_table_that_was_removed_is_an_error(tmp_path: Path) -> None:
    publish_version(tmp_path, 1)
    (tmp_path / "relay").rename(tmp_path / "away")
    for use in (read_tables, open_writer):
        with pytest.raises(TablesError, match=rf"relay: .*Move {tmp_path} away and run sbus-pipeline again"):
            use(tmp_path)


@pytest.mark.parametrize("name", ["hours", "users"])
def test_a_damaged_log_is_named(tmp_path: Path, name: str) -> None:
    publish_version(tmp_path, 1)
    newest = max((tmp_path / name / LOG).glob("*.json"))
    newest.write_text("{garbage")
    for use in (read_tables, open_writer):
        with pytest.raises(TablesError, match=rf"{name}: cannot read table: .*If it is damaged, move {tmp_path} away") as caught:
            use(tmp_path)
        assert "\n" not in str(caught.value)


def test_an_empty_commit_as_after_a_power_failure_is_repeated(tmp_path: Path) -> None:
    """The last commit of the manifests may be empty then; all others were synced before it."""
    publish_version(tmp_path, 1)
    publish_version(tmp_path, 2)
    max((tmp_path / "hours" / LOG).glob("*.json")).write_bytes(b"")
    assert visible(tmp_path) == FIRST
    publish_version(tmp_path, 2)
    assert visible(tmp_path) == SECOND


def test_the_origin_is_stored(tmp_path: Path) -> None:
    assert TableWriter(tmp_path).origin is None
    for origin in ({"archive": 'é "x"\\', "version": 2}, {"archive": "/y"}):
        TableWriter(tmp_path).store_origin(origin)
        assert TableWriter(tmp_path).origin == origin
    assert RELAY.name in read_tables(tmp_path).tables


def test_an_hour_is_replaced_without_touching_its_neighbours(tmp_path: Path) -> None:
    publish_version(tmp_path, 1)
    (other,) = (tmp_path / "users" / folder_of(LATER)).iterdir()
    publish_version(tmp_path, 3, (HOUR,))
    assert visible(tmp_path) == ([3, 1], [1], [3, 1])
    assert list((tmp_path / "users" / folder_of(LATER)).iterdir()) == [other]


def test_a_new_table_is_created_in_old_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: schema for name, schema in publication._SCHEMAS.items() if name != RELAY.name}
    monkeypatch.setattr(publication, "_SCHEMAS", few)
    writer = open_writer(tmp_path)
    replace_version(writer, USERS, [HOUR, LATER], 1)
    writer.publish([Manifest(HOUR, 1, ()), Manifest(LATER, 1, ())])
    monkeypatch.undo()
    assert visible(tmp_path) == ([1, 1], [], [1, 1])
    publish_version(tmp_path, 3, (LATER,))
    assert visible(tmp_path) == ([1, 3], [3], [1, 3])


def test_without_tables_to_compute_no_table_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_version(tmp_path, 1)
    opened: list[str] = []

    def recorded(root: Path, name: str) -> DeltaTable | None:
        opened.append(name)
        return open_table(root, name)

    monkeypatch.setattr(publication, "open_table", recorded)
    writer = TableWriter(tmp_path)
    assert (len(writer.manifests_of([HOUR])), writer.incomplete_hours()) == (1, set())
    writer.publish([Manifest(HOUR, 5, (), absent=("x",))])
    writer.maintain()
    assert opened == ["hours"]
    assert visible(tmp_path) == ([1, 1], [1, 1], [5, 1])
    assert TableWriter(tmp_path).incomplete_hours() == {HOUR}
