"""Locks a directory of tables for one run at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from sbusd.pipeline.errors import PipelineError

RUN_LOCK = ".run.lock"
"""Held by the pipeline; contains its process id."""


@contextlib.contextmanager
def run_lock(root: Path) -> Iterator[None]:
    """Hold the lock for writing the tables under *root*, a directory.

    Raises:
        PipelineError: another run holds it; the text has its process id.
        OSError: the lock cannot be opened.
    """
    fd = os.open(root / RUN_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise PipelineError(f"{root}: in use by another sbus-pipeline, process {holder}. Wait until it has finished") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)
