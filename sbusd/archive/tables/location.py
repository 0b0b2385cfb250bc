"""Where the tables are: a directory, or a prefix of an S3-compatible object store. No I/O. Spec: sbus-pipeline(8)."""

from __future__ import annotations

from pathlib import Path

from sbusd.archive.storage.location import ArchivePath, LocationError, parse_location


def parse_tables_location(text: str) -> ArchivePath:
    """Return the location of tables in *text*.

    Raises:
        LocationError: it is not a location, or of a store that cannot create a file only if it does not exist.
    """
    found = parse_location(text)
    if not isinstance(found, Path) and found.scheme != "s3":
        raise LocationError(f"invalid location {text!r}: tables need a directory, or s3://BUCKET/PREFIX")
    return found


def table_uri(root: ArchivePath, name: str) -> str:
    """Return where the table *name* under *root* is."""
    return str(root.absolute() / name if isinstance(root, Path) else root / name)
