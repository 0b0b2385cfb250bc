"""Each hour has a file of its own, with the statistics that engines use to skip files."""

from __future__ import annotations

import datetime
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbus_archive.storage.files import TablesError
from sbus_archive.storage.store import LocalStore
from sbus_archive.tables.data_files import (
    LONGEST_TEXT,
    STAGING,
    adopt,
    describe_file,
    new_staging,
    read_rows,
    remove_leftovers,
    statistics_of,
    write_rows,
)
from sbus_archive.tables.hours import Hour
from sbus_archive.tables.schema import TRAFFIC, USERS

DAY = "2026-11-20"
SCHEMA = USERS.arrow_schema()


def rows(*hours: int) -> pa.Table:
    """Return a row for each of *hours*."""
    return pa.Table.from_pylist([{"host": "alpha", "lost": hour, "date": DAY, "hour": hour} for hour in hours], SCHEMA)


def statistics(table: pa.Table, row_group_size: int = 100) -> dict[str, dict[str, object]]:
    """Return the statistics of a file with *table*."""
    stream = io.BytesIO()
    pq.write_table(table, stream, row_group_size=row_group_size)
    stream.seek(0)
    found: dict[str, dict[str, object]] = json.loads(statistics_of(pq.read_metadata(stream)))
    return found


@pytest.mark.parametrize("size", [1, 2, 100])
def test_each_hour_is_a_file_whatever_the_batches(tmp_path: Path, size: int) -> None:
    store = LocalStore(tmp_path)
    files = write_rows(store, "users", SCHEMA, rows(1, 1, 1, 2, 4, 4).to_batches(size))
    assert [(file.hour, file.rows) for file in files] == [(Hour(DAY, 1), 3), (Hour(DAY, 2), 1), (Hour(DAY, 4), 2)]
    assert [file.size for file in files] == [(tmp_path / "users" / file.path).stat().st_size for file in files]
    assert [describe_file(tmp_path / "users", file.path, file.hour) for file in files] == files
    found = read_rows(store, "users", [(file.path, file.size, file.hour) for file in files], SCHEMA)
    assert found == rows(1, 1, 1, 2, 4, 4)
    assert write_rows(store, "users", SCHEMA, []) == []
    assert read_rows(store, "users", [], SCHEMA).schema == SCHEMA


def test_a_file_without_a_column_has_nulls_there(tmp_path: Path) -> None:
    (file,) = write_rows(LocalStore(tmp_path), "users", SCHEMA, rows(1).to_batches())
    wider = pa.schema([pa.field("fresh", pa.int64()), *SCHEMA])
    found = read_rows(LocalStore(tmp_path), "users", [(file.path, file.size, file.hour)], wider)
    assert (found.column("fresh").to_pylist(), found.column("lost").to_pylist()) == ([None], [1])


def test_statistics_are_those_of_the_delta_protocol() -> None:
    moment = datetime.datetime(2026, 11, 20, 7, 5, tzinfo=datetime.UTC)
    columns = ("minute", "host", "prefix", "uid", "messages")
    table = pa.Table.from_pylist(
        [dict(zip(columns, values, strict=True)) for values in ((moment, "b", None, None, 5), (moment, "a", None, 7, -3))],
        pa.schema([TRAFFIC.arrow_schema().field(name) for name in columns]),
    )
    for size in (1, 2):  # a row group without any value has no bounds
        assert statistics(table, size) == {
            "numRecords": 2,
            "nullCount": {"minute": 0, "host": 0, "prefix": 2, "uid": 1, "messages": 0},
            "minValues": {"minute": "2026-11-20T07:05:00.000000Z", "host": "a", "uid": 7, "messages": -3},
            "maxValues": {"minute": "2026-11-20T07:05:00.000000Z", "host": "b", "uid": 7, "messages": 5},
        }


def test_long_texts_and_lists_have_no_bounds() -> None:
    table = pa.table({"text": ["x" * (LONGEST_TEXT + 1)], "short": ["x" * LONGEST_TEXT], "list": [[1, 2]]})
    found = statistics(table)
    assert found["maxValues"] == {"short": "x" * LONGEST_TEXT}
    assert found["nullCount"] == {"text": 0, "short": 0}


def test_no_rows_have_no_bounds() -> None:
    assert statistics(rows()) == {"numRecords": 0, "minValues": {}, "maxValues": {}, "nullCount": {}}


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "bad.parquet").write_bytes(b"PAR1")
    for name in ("none.parquet", "bad.parquet"):
        with pytest.raises(TablesError, match=rf"{name}: cannot read file: ") as caught:
            read_rows(store, "users", [(name, 4, Hour(DAY, 1))], SCHEMA)
        assert "\n" not in str(caught.value)


def stage(root: Path) -> Path:
    """Write two hours as Spark does, with its other files."""
    staging = new_staging(root, "users")
    for hour in (5, 17):
        folder = staging / "date=2026-11-20" / f"hour={hour}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"lost": [hour]}), folder / f"part-{hour}.parquet")
        (folder / f".part-{hour}.parquet.crc").touch()
    (staging / "_SUCCESS").touch()
    return staging


def test_files_are_moved_into_the_table(tmp_path: Path) -> None:
    staging = stage(tmp_path)
    assert staging.name.startswith(f"{STAGING}users-")
    found = adopt(tmp_path, "users", staging)
    assert [(file.path, file.hour, file.rows) for file in found] == [
        ("date=2026-11-20/hour=17/part-17.parquet", Hour("2026-11-20", 17), 1),
        ("date=2026-11-20/hour=5/part-5.parquet", Hour("2026-11-20", 5), 1),
    ]
    assert {str(path.relative_to(tmp_path / "users")) for path in tmp_path.rglob("*") if path.is_file()} == {file.path for file in found}
    assert not staging.exists()


def test_nothing_staged_is_no_file(tmp_path: Path) -> None:
    """Without rows, Spark makes only a directory."""
    (tmp_path / "users").mkdir()
    assert adopt(tmp_path, "users", new_staging(tmp_path, "users")) == []


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    stage(tmp_path)
    stage(tmp_path)
    (tmp_path / "notes.txt").touch()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
