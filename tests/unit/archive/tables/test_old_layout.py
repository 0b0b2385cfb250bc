"""Tables of the old layout are found, and a reader says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.archive.files import TablesError
from sbusd.archive.tables.hours import Hour
from sbusd.archive.tables.old_layout import check_layout, has_old_tables, old_files, old_manifests, old_origin, remove_old_state
from sbusd.archive.tables.storage import read_tables


def make(root: Path, *names: str) -> None:
    """Create files."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{")


@pytest.mark.parametrize("name", ["hours/2026-11-20T12.json", "origin.json"])
def test_a_reader_says_what_to_do(tmp_path: Path, name: str) -> None:
    make(tmp_path, name)
    with pytest.raises(TablesError, match=r"the layout of an earlier version\. Run sbus-pipeline once: it converts them"):
        read_tables(tmp_path)
    remove_old_state(tmp_path)
    assert not has_old_tables(tmp_path)
    check_layout(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    make(tmp_path, "hours/2026-11-20T12.json", "origin.json", "hours/.draft.json")
    with pytest.raises(TablesError, match=r"hours/2026-11-20T12\.json: "):
        old_manifests(tmp_path)
    with pytest.raises(TablesError, match=r"origin\.json: damaged file"):
        old_origin(tmp_path)


def test_an_interrupted_publication_is_left_to_the_version_that_began_it(tmp_path: Path) -> None:
    make(tmp_path, "origin.json", ".plan.json")
    with pytest.raises(TablesError, match=r"\.plan\.json: an earlier version of sbus-pipeline was interrupted while it published"):
        old_manifests(tmp_path)


def test_files_are_listed_with_their_hours(tmp_path: Path) -> None:
    make(tmp_path, *(f"users/date=2026-11-20/hour={name}" for name in ("05/part-0.parquet", "05/.part-0.parquet.crc", "23/_SUCCESS")))
    assert old_files(tmp_path, "users") == [("date=2026-11-20/hour=05/part-0.parquet", Hour("2026-11-20", 5))]
