"""Tables of the old layout keep their rows when they are converted, also if the conversion is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sbusd.archive.files import TablesError
from sbusd.archive.tables import conversion
from sbusd.archive.tables.conversion import convert_old_tables
from sbusd.archive.tables.hours import Manifest
from sbusd.archive.tables.publication import TableWriter
from sbusd.archive.tables.schema import RELAY, TABLES, USERS, Table
from sbusd.archive.tables.storage import read_tables
from tests.support.table_versions import FIRST, HOUR, LATER, publish_version, visible

ORIGIN = {"archive": "/a", "version": 2}


class KilledError(BaseException):
    """Simulates SIGKILL."""


def rows_of(table: Table, count: int) -> pa.Table:
    """Return *count* rows of version 1, without date and hour."""
    schema = pa.schema([table.arrow_schema().field(name) for name in table.names])
    return pa.Table.from_pylist([{"host": "alpha", table.names[-1]: 1}] * count, schema)


def make_old_tables(root: Path) -> None:
    """Write two hours as the version before Delta Lake did: files for hours without rows too, and no table that is new."""
    for hour in (HOUR, LATER):
        for table in TABLES[:6]:
            folder = root / table.name / f"date={hour.date}" / f"hour={hour.hour:02}"
            folder.mkdir(parents=True)
            pq.write_table(rows_of(table, int(table is USERS)), folder / "part-0.parquet")
        folder = root / RELAY.name / f"date={hour.date}" / f"hour={hour.hour:02}"
        folder.mkdir(parents=True)
        pq.write_table(rows_of(RELAY, 1), folder / "part-0.parquet")
        (root / "hours").mkdir(exist_ok=True)
        (root / "hours" / f"{hour}.json").write_text(json.dumps({**Manifest(hour, 1, ()).to_json(), "version": 2}))
    (root / "origin.json").write_text(json.dumps(ORIGIN))
    (root / ".lock").touch()


def test_rows_manifests_and_origin_are_kept(tmp_path: Path) -> None:
    make_old_tables(tmp_path)
    writer = TableWriter(tmp_path)
    assert convert_old_tables(writer) == 2
    assert (visible(tmp_path), writer.origin) == (FIRST, ORIGIN)
    assert not [*tmp_path.glob("hours/*.json"), *tmp_path.glob("*.json"), *tmp_path.glob(".lock")]
    assert {name: table.num_rows for name, table in read_tables(tmp_path).tables.items() if table.num_rows} == {"users": 2, "relay": 2}
    assert convert_old_tables(TableWriter(tmp_path)) == 0
    publish_version(tmp_path, 3)
    assert visible(tmp_path) == ([3, 3], [3], [3, 3])


@pytest.mark.parametrize("step", ["replace", "store_origin", "publish", "remove_old_state"])
def test_a_conversion_that_was_killed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    make_old_tables(tmp_path)

    def kill(*_arguments: object) -> None:
        raise KilledError

    target = conversion if step == "remove_old_state" else TableWriter
    with monkeypatch.context() as patch:
        patch.setattr(target, step, kill)
        with pytest.raises(KilledError):
            convert_old_tables(TableWriter(tmp_path))
    writer = TableWriter(tmp_path)
    assert convert_old_tables(writer) == (0 if step == "remove_old_state" else 2)
    assert (visible(tmp_path), writer.origin) == (FIRST, ORIGIN)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    make_old_tables(tmp_path)
    (path,) = tmp_path.glob("users/date=*/hour=07/*")
    path.write_bytes(b"PAR1")
    with pytest.raises(TablesError, match="users: cannot convert table: "):
        convert_old_tables(TableWriter(tmp_path))
