"""Keeps Delta tables small: merges files of past days, removes files that no reader needs, shortens the log. Spec: sbus-pipeline(8).

The work of a run is bounded: a table is due once in :data:`COMMITS` commits, and at most :data:`DAYS` days are merged.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from deltalake import DeltaTable

from sbusd.archive.tables.delta import DATE, ONCE, WITHOUT_HOOKS

COMMITS = 16
"""Number of commits of a table between two maintenances: four hours, if the table changes every quarter of an hour."""

DAYS = 31
"""Maximum number of days that are merged at once."""

RETENTION_HOURS = 24
"""How long replaced files are kept: readers that began before have this time, and earlier versions can be read."""


def is_due(before: int, version: int) -> bool:
    """Return whether a table whose version was *before* and is *version* now is due."""
    return before // COMMITS != version // COMMITS


def maintain(table: DeltaTable) -> None:
    """Merge the files of past days, and remove files that were replaced long ago, or that no commit names. Raises DeltaError, OSError."""
    if days := _days_to_merge(table):
        table.optimize.compact(partition_filters=[(DATE, "in", days)], commit_properties=ONCE, post_commithook_properties=WITHOUT_HOOKS)
    table.vacuum(RETENTION_HOURS, dry_run=False, full=True, commit_properties=ONCE, post_commithook_properties=WITHOUT_HOOKS)


def _days_to_merge(table: DeltaTable) -> list[str]:
    """Return the oldest days with several files. The newest day of the table will still change."""
    files = Counter(pa.table(table.get_add_actions(flatten=True)).column(f"partition.{DATE}").to_pylist())
    newest = max(files, default="")
    return sorted(day for day, count in files.items() if count > 1 and day != newest)[:DAYS]
