"""Tests of the tiers of tests (tests/support/tiers.py), in a run of pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.stage import ROOT

pytestmark = pytest.mark.slow

_SUITE = """
import subprocess
import pytest

def test_nothing():
    pass

def test_reader():
    subprocess.run(["git", "--version"], check=True)

def test_program():
    subprocess.run(["true"], check=True)

@pytest.mark.slow
def test_marked():
    subprocess.run(["true"], check=True)
"""


@pytest.mark.parametrize(
    ("options", "last_line"),
    [([], "4 passed, 1 error"), (["-m", "fast"], "3 passed, 1 deselected, 1 error"), (["-m", "slow"], "1 passed, 3 deselected")],
)
def test_a_fast_test_that_starts_a_program_fails(tmp_path: Path, options: list[str], last_line: str) -> None:
    (tmp_path / "tests/unit").mkdir(parents=True)
    (tmp_path / "tests/unit/test_suite.py").write_text(_SUITE)
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*command, *options, "tests"], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert last_line in done.stdout.splitlines()[-1], done.stdout + done.stderr
    assert ("a fast test that starts true: mark it slow" in done.stdout) == ("error" in last_line)
