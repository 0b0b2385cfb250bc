"""Directories that Spark writes before the files become those of a table. No reader searches them. Spec: sbus-pipeline(8)."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from sbusd.archive.files import make_folder, sync_folder
from sbusd.archive.tables.data_files import DataFile, describe_file, folder_of
from sbusd.archive.tables.hours import Hour

STAGING = ".staging-"
"""Beginning of the name of such a directory. A table's name and a random text follow."""


def new_staging(root: Path, name: str) -> Path:
    """Return a new path below *root*, the directory of the tables, for rows of the table *name*."""
    return root / f"{STAGING}{name}-{uuid.uuid4()}"


def adopt(root: Path, name: str, staging: Path) -> list[DataFile]:
    """Move the Parquet files below *staging* into the table *name* under *root*, durably, and return them. They are not committed.

    *staging* has directories ``date=YYYY-MM-DD/hour=H``, and is removed.

    Raises:
        OSError, ArrowException: a file cannot be read or moved.
    """
    found = []
    for path in sorted(staging.glob("date=*/hour=*/[!._]*.parquet")):
        hour = Hour(path.parent.parent.name.removeprefix("date="), int(path.parent.name.removeprefix("hour=")))
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
        relative = f"{folder_of(hour)}/{path.name}"
        target = root / name / relative
        make_folder(target.parent)
        path.rename(target)
        found.append(describe_file(root / name, relative, hour))
    folders = {(root / name / file.path).parent for file in found}
    for folder in {each for inner in folders for each in (inner, inner.parent, inner.parent.parent)}:
        sync_folder(folder)
    shutil.rmtree(staging, ignore_errors=True)
    return found


def remove_leftovers(root: Path) -> None:
    """Remove what killed runs left under *root*. Spark of such a run can still write there for a moment; it fails then."""
    for folder in root.glob(f"{STAGING}*"):
        shutil.rmtree(folder, ignore_errors=True)
