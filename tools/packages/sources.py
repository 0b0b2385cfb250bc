"""What packages are built from: the files of this tree that git would commit, no matter what else was built in it."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.stage import HOUSES, ROOT

PARTS = ("LICENSE", "README.md", "clients", "etc", "man", "packaging", "pyproject.toml", "pyspark_sbus", *HOUSES, "units")
"""What of the tree goes into packages, or says how they are built."""

_BUILT = {".so", ".pyc"}
"""Files built next to the sources, which are ignored in a tree without git."""

_BUILT_BY_CYTHON = {".c", ".cpp", ".html"}
"""The same, if there is a ``.pyx`` of that name; the report's page is a source."""


def source_files(root: Path = ROOT, parts: Sequence[str] = PARTS) -> list[Path]:
    """Return the sources in *parts* of the tree *root*, as sorted paths within it; a part is a file or a folder of the root."""
    if (root / ".git").exists() and shutil.which("git"):
        command = ["git", "-c", f"safe.directory={root}", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *parts]
        names = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
        found: Iterable[Path] = {Path(name) for name in names if name and (root / name).is_file()}
    else:
        found = [path.relative_to(root) for part in parts for path in _files_below(root / part)]
    return sorted(found)


def digest_of(files: list[Path], *more: str, root: Path = ROOT) -> str:
    """Return a digest of *files*, their names, contents and modes, and of the words *more*."""
    digest = hashlib.sha256("\0".join(more).encode())
    for path in files:
        content = (root / path).read_bytes()
        executable = (root / path).stat().st_mode & 0o100 != 0
        digest.update(f"\0{path}\0{len(content)}\0{executable:d}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def copy_to(folder: Path, files: list[Path], root: Path = ROOT) -> None:
    """Copy *files* of the tree *root* into *folder*, with modes that do not depend on who cloned the tree."""
    for path in files:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, target)
        target.chmod(0o755 if (root / path).stat().st_mode & 0o100 else 0o644)
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)


def _files_below(path: Path) -> Iterable[Path]:
    """Return *path* if it is a file, else the files below it that are sources."""
    below = [path] if path.is_file() else path.rglob("*")
    return [each for each in below if each.is_file() and not _is_built(each)]


def _is_built(path: Path) -> bool:
    """Return whether *path* has been built from sources in its folder."""
    return path.suffix in _BUILT or (path.suffix in _BUILT_BY_CYTHON and path.with_suffix(".pyx").exists())
