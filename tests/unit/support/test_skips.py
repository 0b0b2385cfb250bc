"""Tests of tests/support/skips.py and of what tests/conftest.py makes of a skip, in a run of pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import skips
from tools.stage import ROOT

pytestmark = pytest.mark.slow

_SUITE = """
import pytest
from tests.support.skips import require

def test_passes() -> None:
    require(True, "never", could_run=True)

def test_honest() -> None:
    require(False, "needs a moon", could_run=False)

def test_hole() -> None:
    require(False, "needs socat: apt-get install socat", could_run=True)

@pytest.mark.skip(reason="no time")
def test_marked() -> None:
    pass
"""


def _run_suite(folder: Path, *options: str, ci: str = "") -> subprocess.CompletedProcess[str]:
    """Run a suite with each kind of skip under the real conftest."""
    (folder / "test_suite.py").write_text(_SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    env = {"CI": ci, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}
    return subprocess.run([*command, *options, str(folder)], cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_skips_are_not_failures_by_default(tmp_path: Path) -> None:
    result = _run_suite(tmp_path)
    assert result.returncode == 0, result.stdout
    assert "1 passed, 3 skipped" in result.stdout


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
@pytest.mark.parametrize(("options", "ci"), [(["--strict-skips"], ""), ([], "true")])
def test_a_skip_that_could_have_run_fails_the_strict_run(tmp_path: Path, options: list[str], ci: str, workers: str) -> None:
    result = _run_suite(tmp_path, *options, workers, ci=ci)
    assert result.returncode == 1, result.stdout
    assert "1 failed, 1 passed, 1 skipped, 1 error" in result.stdout.splitlines()[-1]
    assert "skipped, but could run on this machine: Skipped: needs socat: apt-get install socat" in result.stdout


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_module_that_skips_itself_fails_the_strict_run(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_module.py").write_text("import pytest\npytest.skip('no time', allow_module_level=True)\n")
    result = _run_suite(tmp_path, "--strict-skips", workers)
    assert result.returncode != 0
    assert "skipped, but could run on this machine: Skipped: no time" in result.stdout


def test_a_program_that_is_missing_is_named_with_its_package() -> None:
    with pytest.raises(pytest.skip.Exception, match="needs no-such-program: apt-get install no-such-package"):
        skips.require_program("no-such-program", "no-such-package")
    skips.require_program("sh", "dash")
