""".ci/run in a made-up tree: it runs make test from anywhere, passes pytest's status on, and lets pytest have the last word."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tools.stage import ROOT

pytestmark = pytest.mark.slow


def _run(folder: Path, recipe: str) -> subprocess.CompletedProcess[str]:
    """Run .ci/run, from another directory, over a Makefile whose test is *recipe*."""
    tree = folder / "tree"
    (tree / ".ci").mkdir(parents=True)
    (tree / ".venv").mkdir()
    (tree / ".venv/pytest.status").write_text("0\n")  # of an earlier run
    shutil.copy(ROOT / ".ci/run", tree / ".ci/run")
    (tree / "Makefile").write_text(f"test:\n\t@{recipe}\n")
    command = [str(tree / ".ci/run")]
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@pytest.mark.parametrize("status", [0, 1, 5])
def test_pytests_status_and_last_line_are_passed_on(tmp_path: Path, status: int) -> None:
    done = _run(tmp_path, f"echo {status} >.venv/pytest.status; echo = closing line =; exit {status}")
    assert done.returncode == status
    assert done.stdout == "= closing line =\n"


def test_a_failure_before_pytest_is_a_failure(tmp_path: Path) -> None:
    done = _run(tmp_path, "echo lint says no; exit 1")
    assert done.returncode == 2
    assert done.stdout == "lint says no\n"


def test_skips_are_strict(tmp_path: Path) -> None:
    assert _run(tmp_path, "echo CI is $$CI").stdout == "CI is true\n"
