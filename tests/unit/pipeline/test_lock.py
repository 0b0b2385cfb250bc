"""One run at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbusd.pipeline.errors import PipelineError
from sbusd.pipeline.lock import RUN_LOCK, run_lock


def test_the_second_run_names_the_first(tmp_path: Path) -> None:
    reported = rf"{tmp_path}: in use by another sbus-pipeline, process {os.getpid()}"
    with run_lock(tmp_path), pytest.raises(PipelineError, match=reported), run_lock(tmp_path):
        pass
    with run_lock(tmp_path):
        assert (tmp_path / RUN_LOCK).read_text() == f"{os.getpid()}\n"
