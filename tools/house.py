"""The figures of the tree and their goals: ``make house``. It fails if a figure is worse than the one that is written here.

A figure that is better is written here with the change that made it so.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tools.imports import imports_of_tree, module_of
from tools.packages.sources import source_files
from tools.stage import HOUSES, ROOT

LONG = 100
"""Columns. A longer line is counted."""

_CODE = {".py", ".pyi", ".pyx", ".pxi", ".pxd"}
_COMPILED = {".py", ".pyx", ".pxi"}


@dataclass(frozen=True)
class Tree:
    """The files of a tree that git would commit."""

    root: Path

    @cached_property
    def files(self) -> list[Path]:
        """Their paths, relative to the root."""
        return source_files(self.root, (*HOUSES, "clients", "tests", "tools"))

    def lines(self, folders: Iterable[str], kinds: Iterable[str] = ()) -> Iterator[str]:
        """Yield each line of the files in *folders* that end with one of *kinds*; of all files without it."""
        wanted, endings = set(folders), set(kinds)
        for path in self.files:
            if path.parts[0] in wanted and (not endings or path.suffix in endings):
                yield from (self.root / path).read_text("utf-8", "replace").splitlines()

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """For each module of the packages, the others of them that it imports."""
        modules = {module_of(path) for path in self.files if path.parts[0] in HOUSES and path.suffix in _CODE - {".pxi"}}
        found: dict[str, set[str]] = {module: set() for module in modules}
        for each in imports_of_tree(self.root):
            origin = module_of(each.path)
            target = each.target if each.target in modules else each.target.rpartition(".")[0]
            if origin in modules and target in modules and target != origin:
                found[origin].add(target)
        return found

    @cached_property
    def cimports(self) -> dict[str, set[str]]:
        """For each compiled module, the other modules whose declarations it takes."""
        declared = {module_of(path) for path in self.files if path.suffix == ".pxd" and path.parts[0] in HOUSES}
        pattern = re.compile(r"^from (sbus[\w.]*) cimport ", re.MULTILINE)
        found: dict[str, set[str]] = {}
        for path in self.files:
            if path.parts[0] in HOUSES and path.suffix in {".pyx", ".pxd"}:
                named = set(pattern.findall((self.root / path).read_text())) & declared
                found.setdefault(module_of(path), set()).update(named - {module_of(path)})
        return found


def source_lines(tree: Tree) -> float:
    """Return the lines of the product: of the packages and the clients, without their pages."""
    return sum(1 for _ in tree.lines((*HOUSES, "clients"), {path.suffix for path in tree.files} - {".md"}))


def test_lines(tree: Tree) -> float:
    """Return the lines of all tests."""
    return sum(1 for _ in tree.lines(("tests",)))


def modules(tree: Tree) -> float:
    """Return how many files of the packages have code: modules, and what extension modules include."""
    return sum(path.parts[0] in HOUSES and path.suffix in _COMPILED for path in tree.files)


def circles(tree: Tree) -> float:
    """Return how many modules import themselves by way of others."""
    return sum(module in _reached(tree.imports, module) for module in tree.imports)


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Return the modules that *start* imports, directly or not."""
    found: set[str] = set()
    pending = [start]
    while pending:
        new = graph[pending.pop()] - found
        found |= new
        pending += new
    return found


def cimport_chain(tree: Tree) -> float:
    """Return the number of compiled modules in the longest chain in which each takes declarations of the next."""

    def height(module: str) -> int:
        return 1 + max((height(other) for other in tree.cimports.get(module, ())), default=0)

    return max(map(height, tree.cimports), default=0)


def comments(tree: Tree) -> float:
    """Return the share of the packages' lines that are comments, in percent."""
    lines = [line.strip() for line in tree.lines(HOUSES, _CODE)]
    return 100 * sum(line.startswith("#") for line in lines) / max(1, len(lines))


def long_lines(tree: Tree) -> float:
    """Return the share of lines of code with more than 100 columns, in percent."""
    lines = list(tree.lines((*HOUSES, "clients", "tests", "tools"), _CODE))
    return 100 * sum(len(line) > LONG for line in lines) / max(1, len(lines))


@dataclass(frozen=True)
class Figure:
    """A figure of the tree: its goal, and what it may be now."""

    words: str
    measure: Callable[[Tree], float]
    goal: float
    now: float
    """A little worse than it is, so that not each change of a line needs another one here."""
    is_least: bool = False
    """More is better."""

    def holds(self, value: float, bound: float) -> bool:
        """Return whether *value* is as good as *bound*."""
        return value >= bound if self.is_least else value <= bound


FIGURES = (
    Figure("lines of source, packages and clients", source_lines, 88_000, 112_900),
    Figure("lines of tests", test_lines, 105_000, 144_100),
    Figure("files with code in packages", modules, 480, 571),
    Figure("modules that import themselves by way of others", circles, 0, 0),
    Figure("compiled modules in the longest chain of cimports", cimport_chain, 6, 6),
    Figure("comments in packages, % of lines", comments, 4, 0.85, is_least=True),
    Figure(f"lines of code over {LONG} columns, %", long_lines, 1, 8.1),
)


def report(tree: Tree, figures: Iterable[Figure] = FIGURES) -> tuple[list[str], bool]:
    """Return a line for each figure, and whether none is worse than it may be."""
    lines = [f"{'now':>9} {'goal':>9}"]
    good = True
    for figure in figures:
        value = figure.measure(tree)
        state = "" if figure.holds(value, figure.goal) else "  not reached"
        if not figure.holds(value, figure.now):
            state, good = f"  WORSE than {_number(figure.now)}", False
        lines.append(f"{_number(value):>9} {_number(figure.goal):>9}  {figure.words}{state}")
    return lines, good


def _number(value: float) -> str:
    """Write a count whole, and a share with two digits."""
    return f"{value:,.0f}" if value == int(value) else f"{value:.2f}"


def main() -> int:
    """Print the figures; return 1 if one is worse than it may be."""
    lines, good = report(Tree(ROOT))
    print(*lines, sep="\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
