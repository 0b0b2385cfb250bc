"""Spark for tests: small, started in seconds, with the classes of Java from a file that is made once and kept."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sbus_archive.storage.location import ArchivePath
from sbus_archive.tables.schema import TABLES
from sbus_archive.tables.storage import read_tables
from tests.support.skips import require
from tests.support.tallies import Lines, in_order
from tests.support.traffic import GrowingRecord, deliver
from tools.packages.cache import cache_folder, kept
from tools.stage import ROOT

if TYPE_CHECKING:
    from sbus_archive.tables.hours import Manifest

_SECONDS = 600
_CLASSES = "java-classes"


def _digest() -> str:
    """Return the digest of what Java compares before it uses a file of classes: itself, and the path of Spark."""
    spec, java = importlib.util.find_spec("pyspark"), shutil.which("java", path=_java_path())
    files = [Path(found).resolve() for found in (spec and spec.origin, java) if found]
    return hashlib.sha256(repr([(str(file), file.stat().st_mtime_ns) for file in files]).encode()).hexdigest()[:16]


def _java_path() -> str:
    """Return where ``java`` is looked for."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin" if home else os.environ.get("PATH", os.defpath)


# One compiler instead of two, and no threads for garbage: a test ends before either would pay.
SHORT_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# Without such a file Java reads and verifies ten thousand classes at each start. -Xlog: no line about a file that does not fit.
JAVA_OPTIONS = f"{SHORT_JAVA} -Xlog:disable -XX:SharedArchiveFile={cache_folder() / f'{_CLASSES}-{_digest()}' / 'spark.jsa'}"
"""Options for each Java of this machine's tests. Java starts without the file too."""

WITHOUT_CODE_GENERATION = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings of a session whose queries see a few hundred rows: Spark interprets them, which gives the same rows without compiling each."""


INTERPRETED = shlex.join([*(f"--conf={name}={value}" for name, value in WITHOUT_CODE_GENERATION.items()), "pyspark-shell"])
"""The same as PYSPARK_SUBMIT_ARGS of a program."""


def require_spark() -> None:
    """Skip the calling test unless PySpark and a Java are there; let Java write its file of classes, unless it is there."""
    require(importlib.util.find_spec("pyspark") is not None, "needs PySpark: pip install 'sbusd[pipeline]'", could_run=True)
    found = bool(os.environ.get("JAVA_HOME")) or shutil.which("java") is not None
    require(found, "needs Java: apt-get install default-jre-headless", could_run=shutil.which("apt-get") is not None)
    kept(_CLASSES, _digest(), _write_classes)


def _write_classes(folder: Path) -> None:
    """Let a run of the pipeline write the file of the classes that it uses, when its Java ends."""
    folder.mkdir()
    archive, tables = folder / "archive", folder / "tables"
    deliver(archive, "alpha", GrowingRecord(1).fill(200))
    own = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ}
    options = f"{SHORT_JAVA} -Xlog:disable -XX:ArchiveClassesAtExit={folder / 'spark.jsa'}"
    env = {**own, "PYTHONPATH": str(ROOT), "SBUS_PIPELINE_JAVA_OPTIONS": options, "PYSPARK_SUBMIT_ARGS": INTERPRETED}
    command = [sys.executable, "-m", "sbus_archive.pipeline", "--archive", str(archive), "--tables", str(tables)]
    # Java has the pipe too, so this returns when it has ended.
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=folder)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(archive)
    shutil.rmtree(tables)


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
