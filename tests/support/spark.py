"""Spark for tests: one session for all of them, small, and started in seconds."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa

from sbusd.archive.storage.location import ArchivePath
from sbusd.archive.tables.schema import TABLES
from sbusd.archive.tables.storage import read_tables
from tests.support.skips import require
from tests.support.tallies import Lines, in_order

if TYPE_CHECKING:
    from sbusd.archive.tables.hours import Manifest

# One compiler instead of two, and no threads for garbage: a test ends before either would pay.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

WITHOUT_CODE_GENERATION = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings of a session whose queries see a few hundred rows: Spark interprets them, which gives the same rows without compiling each."""


def require_spark() -> None:
    """Skip the calling test unless PySpark and a Java are there."""
    require(importlib.util.find_spec("pyspark") is not None, "needs PySpark: pip install 'sbusd[pipeline]'", could_run=True)
    found = bool(os.environ.get("JAVA_HOME")) or shutil.which("java") is not None
    require(found, "needs Java: apt-get install default-jre-headless", could_run=shutil.which("apt-get") is not None)


def published(root: ArchivePath) -> dict[str, Lines]:
    """Return the tables under *root* as ``tallies`` writes them."""
    found = read_tables(root).tables
    return {table.name: in_order(_lines(found[table.name], table.names)) for table in TABLES}


def manifests(root: ArchivePath) -> list[Manifest]:
    """Return what is known of the hours of the tables under *root*, in order."""
    return list(read_tables(root).manifests.values())


def _lines(table: pa.Table, names: tuple[str, ...]) -> list[tuple[object, ...]]:
    """Return the rows of an Arrow table."""
    rows = table.to_pylist()
    return [(row["date"], row["hour"], *(row[name] for name in names)) for row in rows]
