"""The rules of the house that a machine can check; each of them is shown to fail on a made-up file."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tools.stage import ROOT

CODE = {".py", ".pyi", ".pyx", ".pxd", ".c", ".h"}

MAX_LINES = 500

_REASON = re.compile(r"Longer than 500 lines, for \w+")
"""Must stand in the first ten lines of a file that is longer."""

_DRAWERS = {"util", "utils", "helper", "helpers", "common", "misc", "shared", "tools", "stuff", "base", "core"}

# Written in two halves, so that this file passes its own test.
_WORKPLACE = re.compile(
    "|".join(
        [r"/wo" + r"rk/", r"/ro" + r"ot/\.", r"/opt/py" + "pi", r"farm-" + "bench", r"issues " + "show", r"fil" + r"e:///(?!dev/null)"]
    )
)

_BUILT = re.compile(r"(^|/)(\.\w+_cache|\.venv|\.hypothesis|__pycache__|build|dist)/|egg-info|\.(so|c|cpp)$")
"""What is ignored where there is no git to say so."""

MANUAL = {"sbus.7", "sbus-protocol.7", "sbus-rpc.7", "sbus-spark.7", "sbus-performance.7", "sbus-record.5", "sbusd.toml.5"}
"""The pages of what is no program; each program of pyproject.toml has its own."""


def _committed() -> list[Path]:
    """Return the files that git would commit, or all in a tree without git; neither those ignored nor those deleted."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
        return [ROOT / name for name in sorted(set(names)) if name and (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not _BUILT.search(str(path.relative_to(ROOT)))]


def _too_long(path: Path) -> Iterable[str]:
    """Yield a line for a file that is long without a reason."""
    lines = path.read_text().splitlines()
    if len(lines) > MAX_LINES and not _REASON.search("\n".join(lines[:10])):
        yield f"{len(lines)} lines, and none of the first ten says: Longer than {MAX_LINES} lines, for …"


def _drawer(path: Path) -> Iterable[str]:
    """Yield a line for a module that is named for nothing in particular."""
    if path.stem in _DRAWERS:
        yield "is a drawer: name it by what it holds"


def _undocumented(path: Path) -> Iterable[str]:
    """Yield a line for each public module, class, function and method that says nothing of itself."""
    tree = ast.parse(path.read_text(), str(path))
    if not ast.get_docstring(tree) and tree.body:
        yield "the module has no docstring"
    yield from _undocumented_in(tree)


def _undocumented_in(parent: ast.Module | ast.ClassDef) -> Iterable[str]:
    """Yield a line for each public name defined in *parent* that has no docstring."""
    for node in parent.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            overload = not isinstance(node, ast.ClassDef) and any("overload" in ast.unparse(each) for each in node.decorator_list)
            if not overload and not (ast.get_docstring(node) or "").strip():
                yield f"line {node.lineno}: {node.name} has no docstring"
            if isinstance(node, ast.ClassDef):
                yield from _undocumented_in(node)


def _workplace(path: Path) -> Iterable[str]:
    """Yield a line for each place that names the machine the file was written on."""
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if match := _WORKPLACE.search(line):
            yield f"line {number}: names {match[0]}, which is of one machine"


Check = Callable[[Path], Iterable[str]]


def _complaints(check: Check, paths: Iterable[Path]) -> list[str]:
    """Return every complaint of *check*, with its file."""
    return [f"{path.relative_to(ROOT)}: {complaint}" for path in paths for complaint in check(path)]


def _code(*parts: str) -> list[Path]:
    """Return the committed source files under any of *parts*."""
    return [path for path in _committed() if path.suffix in CODE and path.relative_to(ROOT).parts[0] in parts]


def test_no_file_is_long_without_a_reason() -> None:
    assert not _complaints(_too_long, _code("sbusd", "tests", "tools", "stubs"))


def test_no_module_is_a_drawer() -> None:
    assert not _complaints(_drawer, _code("sbusd", "tests", "tools"))


def test_every_public_name_is_documented() -> None:
    paths = [path for path in _code("sbusd", "tools") if path.suffix == ".py"]
    assert len(paths) > 20
    assert not _complaints(_undocumented, paths)


def test_no_file_names_the_machine_it_was_written_on() -> None:
    assert not _complaints(_workplace, _committed())


def test_every_program_and_format_has_a_manual_page() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pages = {path.name for path in (ROOT / "man").iterdir()}
    for program in project["project"]["scripts"]:
        assert pages & {f"{program}.1", f"{program}.8"}, program
    assert pages >= MANUAL


@pytest.mark.parametrize(
    ("check", "name", "text"),
    [
        (_too_long, "long.py", "x = 1\n" * 501),
        (_too_long, "late.py", "x = 1\n" * 500 + "# Longer than 500 lines, for a reason that comes too late.\n"),
        (_drawer, "utils.py", ""),
        (_undocumented, "bare.py", "X = 1\n"),
        (_undocumented, "function.py", '"""Words."""\ndef run() -> None: ...\n'),
        (_undocumented, "method.py", '"""Words."""\nclass A:\n    """Words."""\n    async def run(self) -> None: ...\n'),
        (_workplace, "path.md", "see /wo" + "rk/there\n"),
    ],
)
def test_a_broken_rule_is_found(tmp_path: Path, check: Check, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert len(list(check(tmp_path / name))) == 1


@pytest.mark.parametrize(
    ("check", "name", "text"),
    [
        (_too_long, "long.py", "# Longer than 500 lines, for one reason: it is a table.\n" + "x = 1\n" * 501),
        (_undocumented, "private.py", '"""Words."""\ndef _run() -> None: ...\n'),
        (_workplace, "path.md", "a bus at /run/sbus.socket and a network\n"),
    ],
)
def test_a_kept_rule_is_not_found(tmp_path: Path, check: Check, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert not list(check(tmp_path / name))
