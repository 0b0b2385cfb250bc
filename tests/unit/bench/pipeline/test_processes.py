"""A program is measured together with its children, and its failure is reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench.pipeline.processes import measure
from tests.bench.programs import BenchError

pytestmark = pytest.mark.slow

_CHILD = "held = bytearray(b'x') * (64 << 20); import time; time.sleep(3)"


def test_memory_of_children_counts(tmp_path: Path) -> None:
    program = f"import subprocess, sys; print('said'); subprocess.run([sys.executable, '-c', {_CHILD!r}])"
    run = measure([sys.executable, "-c", program], tmp_path / "log")
    assert run.peak_bytes > 64 << 20
    assert run.seconds > 0.5
    assert run.output == "said\n"


def test_a_failure_has_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no such thing"):
        measure([sys.executable, "-c", "import sys; sys.exit('no such thing')"], tmp_path / "log")
