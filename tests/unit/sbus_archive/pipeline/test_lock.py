"""One run at a time; a killed run's engine is waited for."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from sbus_archive.pipeline.errors import PipelineError
from sbus_archive.pipeline.lock import ENGINE_LOCK, RUN_LOCK, run_lock


def test_the_second_run_names_the_first(tmp_path: Path) -> None:
    reported = rf"{tmp_path}: in use by another sbus-pipeline, process {os.getpid()}"
    with run_lock(tmp_path), pytest.raises(PipelineError, match=reported), run_lock(tmp_path):
        pass
    with run_lock(tmp_path):
        assert (tmp_path / RUN_LOCK).read_text() == f"{os.getpid()}\n"


def test_the_engine_of_a_killed_run_is_waited_for(tmp_path: Path) -> None:
    """Its lock is a record lock, which this process cannot hold against itself: another does."""
    reported, tell = os.pipe()
    end, ended = os.pipe()
    pid = os.fork()
    if pid == 0:
        fd = os.open(tmp_path / ENGINE_LOCK, os.O_RDWR | os.O_CREAT)
        fcntl.lockf(fd, fcntl.LOCK_EX)
        os.write(tell, b"x")
        os.read(end, 1)
        os._exit(0)
    os.read(reported, 1)
    with pytest.raises(PipelineError, match="still locked by Spark of an earlier run"), run_lock(tmp_path, wait=0.0):
        pass
    os.write(ended, b"x")
    with run_lock(tmp_path, wait=60.0):
        os.waitpid(pid, 0)
    for fd in (reported, tell, end, ended):
        os.close(fd)
