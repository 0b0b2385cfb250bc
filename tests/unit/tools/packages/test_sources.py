"""Packages are built from what git would commit, and a change of it is noticed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import skips
from tools.packages import sources
from tools.stage import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree, with what a build leaves in it."""
    root = tmp_path / "tree"
    for name, text in {
        "sbusd/dataplane/switch.pyx": "pass\n",
        "sbusd/dataplane/switch.cpp": "built",
        "sbusd/dataplane/switch.html": "built",
        "sbusd/dataplane/switch.so": "built",
        "sbus_archive/report/page.html": "<!doctype html>",
        "sbusd/__pycache__/a.pyc": "built",
        "man/sbus.7": ".Dd\n",
        "packaging/debian/rules": "#!/usr/bin/make -f\n",
        "tests/test_it.py": "pass\n",
        ".gitignore": "*.so\n*.cpp\n/sbusd/dataplane/*.html\n__pycache__/\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "packaging/debian/rules").chmod(0o700)
    return root


SOURCES = ["man/sbus.7", "packaging/debian/rules", "sbus_archive/report/page.html", "sbusd/dataplane/switch.pyx"]


def _names(root: Path) -> list[str]:
    return [str(path) for path in sources.source_files(root)]


def test_a_tree_without_git_is_read(tree: Path) -> None:
    assert _names(tree) == SOURCES


def test_a_clone_is_read(tree: Path) -> None:
    skips.require_program("git", "git")
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    assert _names(tree) == SOURCES


def test_every_change_changes_the_digest(tree: Path) -> None:
    files = sources.source_files(tree)
    seen = {sources.digest_of(files, root=tree), sources.digest_of(files, "more", root=tree), sources.digest_of(files[1:], root=tree)}
    (tree / "man/sbus.7").write_text(".Dt\n")
    seen.add(sources.digest_of(files, root=tree))
    (tree / "packaging/debian/rules").chmod(0o600)
    seen.add(sources.digest_of(files, root=tree))
    assert len(seen) == 5
    assert sources.digest_of(files, root=tree) in seen


def test_a_copy_has_the_modes_that_packages_get(tree: Path, tmp_path: Path) -> None:
    sources.copy_to(tmp_path / "copy", sources.source_files(tree), tree)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in (tmp_path / "copy").rglob("*")}
    assert modes["copy/packaging/debian/rules"] == 0o755
    assert modes["copy/packaging"] == 0o755
    assert modes["copy/man/sbus.7"] == 0o644


def test_this_tree_has_all_its_parts() -> None:
    found = {path.parts[0] for path in sources.source_files()}
    assert found == set(sources.PARTS)
    if shutil.which("git") and (ROOT / ".git").exists():
        assert not [path for path in sources.source_files() if path.suffix in {".so", ".cpp"}]
