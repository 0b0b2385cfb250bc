"""Tables of the layout before Delta Lake: directories of Parquet files, and manifests as files. Their files become Delta tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from sbusd.archive.files import TablesError
from sbusd.archive.storage.location import ArchivePath
from sbusd.archive.tables.hours import MANIFESTS, Hour, Manifest

NAMES = (".staging", ".plan.json", ".lock", "origin.json")
"""Its files next to the tables."""

_PLAN = ".plan.json"
_ORIGIN = "origin.json"
_MANIFESTS = f"{MANIFESTS}/[!.]*.json"


def check_layout(root: ArchivePath) -> None:
    """Raise TablesError if the directory *root* has tables of the old layout, and no others."""
    if isinstance(root, Path) and not (root / MANIFESTS / "_delta_log").is_dir() and has_old_tables(root):
        raise TablesError(root, "the tables have the layout of an earlier version. Run sbus-pipeline once: it converts them")


def has_old_tables(root: Path) -> bool:
    """Return whether *root* has manifests of the old layout, or its origin."""
    return (root / _ORIGIN).exists() or next(root.glob(_MANIFESTS), None) is not None


def old_manifests(root: Path) -> list[Manifest]:
    """Return the manifests of the old layout.

    Raises:
        TablesError: one is invalid, or a publication was interrupted.
        OSError: one cannot be read.
    """
    if (root / _PLAN).exists():
        raise TablesError(
            root / _PLAN,
            "an earlier version of sbus-pipeline was interrupted while it published. Run that version again before this one, "
            "or move the directory away and run this one: it computes all hours whose segments still exist",
        )
    found = []
    for path in sorted(root.glob(_MANIFESTS)):
        try:
            found.append(Manifest.from_json(json.loads(path.read_bytes())))
        except ValueError as error:
            raise TablesError(path, f"{error}") from None
    return found


def old_origin(root: Path) -> object:
    """Return the stored origin of the old layout, None if there is none. Raises TablesError, OSError."""
    path = root / _ORIGIN
    try:
        return json.loads(path.read_bytes()) if path.exists() else None
    except ValueError:
        raise TablesError(path, "damaged file. Run sbus-pipeline --rebuild") from None


def old_files(root: Path, name: str) -> list[tuple[str, Hour]]:
    """Return the files of the table *name* in the old layout, relative to the table, with their hours."""
    found = []
    for path in sorted((root / name).glob("date=*/hour=*/[!._]*.parquet")):
        hour = Hour(path.parent.parent.name.removeprefix("date="), int(path.parent.name.removeprefix("hour=")))
        found.append((str(path.relative_to(root / name)), hour))
    return found


def remove_old_state(root: Path) -> None:
    """Remove what only the old layout has; the Parquet files stay. Raises OSError."""
    for path in (*root.glob(_MANIFESTS), *(root / name for name in NAMES if name != ".staging")):
        path.unlink(missing_ok=True)
    shutil.rmtree(root / ".staging", ignore_errors=True)
