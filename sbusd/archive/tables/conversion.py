"""Converts tables of the old layout: their Parquet files are committed where they are. Spec: sbus-pipeline(8)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from sbusd.archive.files import TablesError
from sbusd.archive.tables.data_files import describe_file
from sbusd.archive.tables.old_layout import has_old_tables, old_files, old_manifests, old_origin, remove_old_state
from sbusd.archive.tables.publication import TableWriter
from sbusd.archive.tables.schema import TABLES


def convert_old_tables(writer: TableWriter) -> int:
    """Publish the tables of the old layout, if there are any, with the same rows; return the number of hours.

    A conversion that is killed and repeated gives the same tables.

    Raises:
        TablesError: a file is damaged, or the earlier version was interrupted.
        OSError: the directory cannot be written.
    """
    root = writer.root
    if not isinstance(root, Path) or not has_old_tables(root):
        return 0
    manifests = [] if writer.has_hours() else old_manifests(root)
    if manifests:
        hours = {manifest.hour for manifest in manifests}
        writer.prepare()
        for table in TABLES:
            files = [(path, hour) for path, hour in old_files(root, table.name) if hour in hours]
            try:
                writer.replace(table.name, hours, [describe_file(root / table.name, path, hour) for path, hour in files])
            except pa.ArrowException as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise TablesError(root / table.name, f"cannot convert table: {reason}") from None
        if (origin := old_origin(root)) is not None:
            writer.store_origin(origin)
        writer.publish(manifests)
    remove_old_state(root)
    return len(manifests)
