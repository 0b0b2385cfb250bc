"""What Spark writes becomes files of a table, and what a killed run left is removed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sbusd.archive.tables.hours import Hour
from sbusd.archive.tables.staging import STAGING, adopt, new_staging, remove_leftovers


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
