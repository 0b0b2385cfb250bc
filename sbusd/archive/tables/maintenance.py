"""Keeps Delta tables small: removes files that no reader needs, shortens the log. Spec: sbus-pipeline(8)."""

from __future__ import annotations

from deltalake import DeltaTable

from sbusd.archive.tables.delta import ONCE, WITHOUT_HOOKS

COMMITS = 16
"""Number of commits of a table between two maintenances: four hours, if the table changes every quarter of an hour."""

RETENTION_HOURS = 24
"""How long replaced files are kept: readers that began before have this time, and earlier versions can be read."""


def is_due(before: int, version: int) -> bool:
    """Return whether a table whose version was *before* and is *version* now is due."""
    return before // COMMITS != version // COMMITS


def remove_old_files(table: DeltaTable) -> None:
    """Remove files that were replaced long ago, or that no commit names. Raises DeltaError, OSError."""
    table.vacuum(RETENTION_HOURS, dry_run=False, full=True, commit_properties=ONCE, post_commithook_properties=WITHOUT_HOOKS)


def shorten_log(table: DeltaTable) -> None:
    """Write a checkpoint of *table*, and remove older files of its log. Its version is published. Raises DeltaError, OSError."""
    table.create_checkpoint()
    table.cleanup_metadata()
