"""Locks a directory of tables for one run at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sbus_archive.pipeline.errors import PipelineError
from sbus_archive.storage.files import LockHeldError, lock_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN_LOCK = ".run.lock"
"""Held by the pipeline; contains its process id."""

ENGINE_LOCK = ".engine.lock"
"""Held by the Java process of Spark, which writes for some seconds after the pipeline was killed."""

ENGINE_SECONDS = 60.0
"""How long a new run waits for Spark of a killed run. Spark usually exits within two seconds."""


@contextlib.contextmanager
def run_lock(root: Path, wait: float = ENGINE_SECONDS, program: str = "sbus-pipeline") -> Iterator[None]:
    """Hold the lock for writing under *root*, a directory of *program*; wait at most *wait* seconds for Spark of a killed run.

    Raises:
        PipelineError: another run holds it; the text has its process id.
        OSError: the lock cannot be opened.
    """
    try:
        fd = lock_file(root / RUN_LOCK, 0o644)
    except LockHeldError as error:
        raise PipelineError(f"{root}: in use by another {program}, process {error.holder}. Wait until it has finished") from None
    try:
        _wait_for_engine(root / ENGINE_LOCK, wait)
        yield
    finally:
        os.close(fd)


def _wait_for_engine(path: Path, seconds: float) -> None:
    """Wait until no Spark process holds the lock *path*, a record lock as Java uses."""
    deadline = time.monotonic() + seconds
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > deadline:
                    raise PipelineError(f"{path}: still locked by Spark of an earlier run. End that process and try again") from None
                time.sleep(0.1)
            else:
                return
    finally:
        os.close(fd)


@contextlib.contextmanager
def engine_lock(spark: SparkSession, root: Path) -> Iterator[None]:
    """Make Spark's Java process hold its lock for the tables under *root*, until that process exits. Raises PipelineError."""
    jvm = spark.sparkContext._jvm
    if jvm is None:
        raise PipelineError("Spark has no Java process here. Run it in client mode")
    channel = jvm.java.io.RandomAccessFile(str(root / ENGINE_LOCK), "rw").getChannel()
    channel.lock()
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # a process that has gone holds no lock
            channel.close()
