"""Tables of the old layout are found and named, and removed without touching anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.archive.files import TablesError
from sbusd.archive.tables.old_layout import check_layout, remove_old_tables
from sbusd.archive.tables.publication import TableWriter
from sbusd.archive.tables.storage import read_tables
from tests.support.table_versions import FIRST, publish_version, visible

OLD = (
    *("hours/2026-11-20T12.json", "hours/.2026-11-20T13.json.tmp", "traffic/date=2026-11-20/hour=12/part-0.zstd.parquet"),
    *("users/date=2026-11-20/hour=12/part-0.parquet", "users/date=2026-11-20/hour=12/._SUCCESS.crc", "origin.json", ".plan.json"),
    *(".lock", ".engine.lock", ".known-entries", ".staging/1/calls/date=2026-11-20/hour=1/part-1.parquet"),
)
OTHERS = ("notes.txt", "users/notes.txt", "hours/notes.txt", ".run.lock")


def make(root: Path, *names: str) -> None:
    """Create files."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")


def files(root: Path) -> set[str]:
    """Return the paths of all files."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_old_tables_are_named_with_what_to_do(tmp_path: Path) -> None:
    make(tmp_path, *OLD)
    for use in (read_tables, TableWriter):
        with pytest.raises(TablesError, match=r"the layout of an earlier version\. Run sbus-pipeline --rebuild: it removes them"):
            use(tmp_path)


def test_nothing_but_old_tables_is_removed(tmp_path: Path) -> None:
    make(tmp_path, *OLD, *OTHERS)
    remove_old_tables(tmp_path)
    assert files(tmp_path) == set(OTHERS)
    assert {path.name for path in tmp_path.rglob("*") if path.is_dir()} == {"users", "hours", "traffic"}
    publish_version(tmp_path, 1)
    remove_old_tables(tmp_path)
    assert visible(tmp_path) == FIRST


@pytest.mark.parametrize("name", ["hours/2026-11-20T12.json", "relay/date=2026-11-20/hour=01/part-0.parquet", ".plan.json", "origin.json"])
def test_a_removal_that_was_killed_is_found(tmp_path: Path, name: str) -> None:
    make(tmp_path, name)
    with pytest.raises(TablesError):
        check_layout(tmp_path)
    remove_old_tables(tmp_path)
    check_layout(tmp_path)
