"""Tests of how make test distributes tests to workers: in runs of pytest of their own, with two workers and without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONGEST, PACKAGES, TOGETHER
from tests.support.tiers import FOLDERS
from tools.stage import ROOT

pytestmark = pytest.mark.slow

_SUITE = """
import pathlib
import pytest

@pytest.fixture
def built():
    pass

@pytest.mark.parametrize("number", range(4))
def test_numbered(number, worker_id{more}):
    file = pathlib.Path(__file__)
    with pathlib.Path("found").open("a") as found:
        print(file.parent.name, file.name, worker_id, file=found)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Files in four folders; two use packages, and two are among the longest; each test adds its folder, file and worker to a file."""
    spark = ("integration/spark/test_pipeline", "integration/spark/test_small_runs")
    for name in ("unit/test_a", "integration/test_b", "system/test_c", "system/test_d", "system/test_e", *spark):
        file = tmp_path / "tests" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_SUITE.format(more=", built" if name.endswith(("_d", "_e")) else ""))
    return tmp_path


def make_test(folder: Path, *options: str) -> tuple[str, list[list[str]]]:
    """Run the suite in *folder* with the options of make test, then *options*; return the last line, and what tests wrote."""
    (makefile,) = (line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("WORKERS := "))
    workers = makefile.removeprefix("WORKERS := ").split()
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}
    done = subprocess.run([*command, *workers, *options, "tests"], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1], [line.split() for line in (folder / "found").read_text().splitlines()]


def test_all_tests_of_a_file_and_of_a_folder_with_a_shared_fixture_run_in_one_of_several_workers(suite: Path) -> None:
    last_line, ran = make_test(suite, "-n2")
    assert last_line.strip("= ").startswith("28 passed in ")  # .ci/run ends with this line
    assert len({(file, worker) for _, file, worker in ran}) == 7
    assert len({worker for folder, _, worker in ran if folder == "spark"}) == 1
    assert {worker for _, _, worker in ran} == {"gw0", "gw1"}


def test_without_workers_all_tests_run_in_one_process_in_the_same_order(suite: Path) -> None:
    last_line, ran = make_test(suite, "-n0")
    assert last_line.strip("= ").startswith("28 passed in ")
    assert {worker for _, _, worker in ran} == {"master"}
    files = [file for _, file, _ in ran]
    names = ("d", "pipeline", "small_runs", "c", "e", "b", "a")
    assert files == [f"test_{name}.py" for name in names for _ in range(4)]


def test_every_folder_of_tests_has_a_place_and_the_fixture_and_the_longest_files_their_names() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    assert {path.relative_to(ROOT / "tests").parts[0] for path in files} == set(FOLDERS)
    assert (ROOT / TOGETHER / "__init__.py").exists()  # otherwise the fixtures end with the worker
    assert set(LONGEST) <= {path.name for path in files}
    assert f"\ndef {PACKAGES}(" in (ROOT / "tests/system/conftest.py").read_text()
