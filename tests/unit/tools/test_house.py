"""The figures of the tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import house
from tools.house import FIGURES, Figure, Tree, report
from tools.stage import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A tree of a few lines, in which two modules import each other and one is in a chain of cimports."""
    files = {
        "sbusd/__init__.py": "",
        "sbusd/one.py": "# why\nfrom sbusd.two import B\n\nA = 1\n",
        "sbusd/two.py": "from sbusd import one\n\nB = '" + "b" * 100 + "'\n",
        "sbusd/three.py": "from sbusd.one import A\n",
        "sbusd/low.pxd": "cdef int low()\n",
        "sbusd/low.pyx": "cdef int low():\n    return 1\n",
        "sbusd/high.pyx": "from sbusd.low cimport low\n",
        "sbusd/part.pxi": "cdef int part():\n    return 2\n",
        "clients/c/one.h": "int one;\n",
        ".gitignore": "not_committed.py\n",
        "tests/test_one.py": "def test_one() -> None:\n    assert True\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "sbusd" / "not_committed.py").write_text("C = 1\n" * 50)
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("measure", "value"),
    [
        (house.source_lines, 15),
        (house.test_lines, 2),
        (house.modules, 7),
        (house.circles, 2),
        (house.cimport_chain, 2),
        (house.comments, pytest.approx(100 / 14)),
        (house.long_lines, pytest.approx(100 / 16)),
    ],
)
def test_a_figure_of_a_small_tree(tree: Tree, measure: object, value: float) -> None:
    (figure,) = [each for each in FIGURES if each.measure is measure]
    assert figure.measure(tree) == value


@pytest.mark.parametrize(
    ("bounds", "says"),
    [
        (Figure("lines", house.source_lines, 15, 20), "lines"),
        (Figure("lines", house.source_lines, 10, 20), "lines  not reached"),
        (Figure("lines", house.source_lines, 10, 14), "lines  WORSE than 14"),
        (Figure("lines", house.source_lines, 15, 15, is_least=True), "lines"),
        (Figure("lines", house.source_lines, 20, 15, is_least=True), "lines  not reached"),
        (Figure("lines", house.source_lines, 20, 16, is_least=True), "lines  WORSE than 16"),
    ],
)
def test_what_is_said_of_a_figure(tree: Tree, bounds: Figure, says: str) -> None:
    lines, good = report(tree, [bounds])
    assert lines[1].endswith(f"  {says}")
    assert good == ("WORSE" not in says)


def test_no_figure_of_this_tree_has_become_worse() -> None:
    lines, good = report(Tree(ROOT))
    assert good, "\n".join(lines)
