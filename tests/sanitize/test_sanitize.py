"""The sanitized build finds what is wrong, in a process with any environment; the suites themselves run by make test-sanitize."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sanitize.build import STATUS, Build, make_build
from tests.sanitize.run import CANARY, LEFT_OUT, SUITES, UNFIT, check_canaries
from tests.support.skips import require
from tests.support.users import User
from tools.stage import ROOT


@pytest.fixture(scope="module")
def build() -> Iterator[Build]:
    """A build of nothing but the deliberate errors."""
    has_library = "/" in subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    require(has_library, "needs gcc's libasan: apt-get install libgcc-12-dev", could_run=shutil.which("apt-get") is not None)
    made = make_build([CANARY])
    yield made
    made.remove()


def test_deliberate_errors_are_found(build: Build) -> None:
    check_canaries(build)
    assert build.reports() == []


def test_correct_code_passes(build: Build) -> None:
    code = "import sys; from tests.sanitize import canary; print(canary.overflow(0), sys.executable)"
    done = build.run("-c", code, is_captured=True, timeout_seconds=60)
    assert done.stdout == f"{2**31 - 1} {build.python}\n"
    assert build.reports() == []


def test_an_error_in_a_process_of_another_user_with_its_own_environment_is_found(build: Build, first_user: User) -> None:
    code = "from tests.sanitize import canary; canary.read_past_the_end(16)"
    done = first_user.run([str(build.python), "-c", code], env={"PYTHONPATH": str(build.tree), "LD_PRELOAD": ""})
    assert done.returncode == STATUS, done.stderr
    (report,) = build.reports()
    assert "heap-buffer-overflow" in report
    build.forget_reports()


def test_a_build_that_finds_nothing_is_refused(build: Build) -> None:
    blind = Build(build.folder)
    (build.tree / "tests" / "sanitize" / "canary.py").write_text("def read_past_the_end(length): pass\n")
    for module in (build.tree / "tests" / "sanitize").glob("canary.*.so"):
        module.rename(module.with_suffix(".away"))
    with pytest.raises(RuntimeError, match="did not find read_past_the_end"):
        check_canaries(blind)


def test_every_suite_and_every_unfit_test_is_there() -> None:
    assert all((ROOT / suite).is_dir() for suite in SUITES)
    assert all((ROOT / path).exists() for path in LEFT_OUT)
    for test, reason in UNFIT.items():
        path, name = test.split("::")
        assert f"def {name}(" in (ROOT / Path(path)).read_text()
        assert reason
