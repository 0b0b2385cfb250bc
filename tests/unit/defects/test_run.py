"""The trial of defects: it tells found from missed, leaves no defect behind, and refuses a table that does not fit the tree."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.defects.defect import Defect
from tests.defects.run import Copy, report
from tools.stage import ROOT

LIMIT = Defect("sbusd/limit.py", "size < 3", "size <= 3", "one more than the limit is admitted", ("test_limit.py",))


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy of a tree with one module, and a test that Git does not list yet."""
    root = tmp_path / "root"
    (root / "sbusd").mkdir(parents=True)
    (root / "sbusd/limit.py").write_text("def admits(size):\n    return size < 3\n")
    (root / "test_limit.py").write_text(
        "import runpy\n\n\ndef test_limit():\n    admits = runpy.run_path('sbusd/limit.py')['admits']\n"
        "    assert admits(2)\n    assert not admits(3)\n"
    )
    (root / "conftest.py").write_text("")
    (root / "pytest.ini").write_text("[pytest]\n")
    for words in (["init", "--quiet"], ["add", "sbusd"]):  # the test is new
        subprocess.run(["git", *words], cwd=root, check=True)
    (root / ".venv").symlink_to(ROOT / ".venv")
    return Copy(root, tmp_path / "copy")


@pytest.mark.slow
def test_a_defect_is_found_or_missed_and_removed_again(copy: Copy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    assert copy.passes(LIMIT.tests, log)
    missed = replace(LIMIT, new="size < 2.5", why="half a byte less is admitted")
    assert [report(copy, each, log) for each in (LIMIT, missed)] == [True, False]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["found", "MISSED"]
    assert copy.passes(LIMIT.tests, log)
    with pytest.raises(RuntimeError, match="status 4"):
        copy.passes(("no_such_test.py",), log)


def test_a_text_that_is_not_there_exactly_once_is_an_error(copy: Copy) -> None:
    others = (
        replace(LIMIT, old="size > 3"),
        replace(LIMIT, old="size"),
        replace(LIMIT, new="size < 3"),
        replace(LIMIT, file="sbusd/no.py"),
    )
    assert copy.stale([LIMIT]) == []
    assert len(copy.stale(others)) == len(others)
