"""Tables of the layout before Delta Lake: directories of Parquet files, and manifests as files. They are found and removed, not read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sbusd.archive.files import TablesError
from sbusd.archive.tables.schema import TABLES

NAMES = (".staging", ".plan.json", ".lock", ".engine.lock", ".known-entries", "origin.json")
"""Its files beside the tables."""

_MARKS = ("hours/*.json", *(f"{table.name}/date=*/hour=*" for table in TABLES), ".plan.json", "origin.json")
_FILES = ("hours/*.json", "hours/.*.json.tmp", *(f"{table.name}/date=*/hour=*/*" for table in TABLES), ".staging/**/*", *NAMES)
_FOLDERS = (*(f"{table.name}/date=*/hour=*" for table in TABLES), *(f"{table.name}/date=*" for table in TABLES), ".staging/**", ".staging")


def check_layout(root: Path) -> None:
    """Raise TablesError if the directory *root* has tables of the old layout."""
    # New tables are created only after old ones were removed, so their files need not be searched.
    if not (root / "hours" / "_delta_log").is_dir() and next(_found(root, _MARKS), None) is not None:
        raise TablesError(
            root, "the tables have the layout of an earlier version. Run sbus-pipeline --rebuild: it removes them and computes them again"
        )


def remove_old_tables(root: Path) -> None:
    """Remove the files of the old layout under *root*, and directories that are empty then; other files stay. Raises OSError."""
    for path in _found(root, _FILES):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
    for path in sorted(_found(root, _FOLDERS), key=lambda path: -len(path.parts)):
        with contextlib.suppress(OSError):  # contains other files
            path.rmdir()


def _found(root: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    """Return what matches one of *patterns*."""
    for pattern in patterns:
        yield from list(root.glob(pattern))
