"""Where a test user finds Python and this project.

A clone often lies where other users cannot go: under /root, or in a directory that mktemp(1) made. Then what they need is
copied to a place they can read, so that a test for two users runs wherever the clone is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.users import FIRST

ROOT = Path(__file__).resolve().parents[2]
"""The root of the source tree."""

_ONLY_FOR_DEVELOPERS = shutil.ignore_patterns(
    "__pycache__", "pip*", "mypy*", "ruff*", "atheris*", "hypothesis*", "Cython*", "cython*", "setuptools*", "__editable__*", "*.pth"
)


@dataclass(frozen=True, slots=True)
class Stage:
    """A Python that anybody can run, with this project on its path."""

    python: str
    env: dict[str, str]
    """All that the process needs in its environment."""
    folder: Path | None = None
    """What was copied, or None where the tree itself can be read."""

    def command(self, module: str, *arguments: str) -> list[str]:
        """Return the command that runs *module* of this project with *arguments*."""
        return [self.python, "-m", module, *arguments]

    def remove(self) -> None:
        """Remove what was copied."""
        if self.folder is not None:
            shutil.rmtree(self.folder)


def open_folder() -> Path:
    """Make a folder with a short name that every user can enter; the caller removes it."""
    folder = Path(tempfile.mkdtemp(prefix="sbus-test-", dir="/tmp"))
    folder.chmod(0o755)
    return folder


def make_stage() -> Stage:
    """Return a stage: the tree itself where a test user can run it, a copy of it elsewhere.

    Raises:
        RuntimeError: no Python of this version can be run by others.
    """
    plain = Stage(sys.executable, _environment([str(ROOT)]))
    return plain if os.geteuid() != 0 or _can_use(plain) else _copy_of_tree()


def _environment(paths: list[str]) -> dict[str, str]:
    """Return the environment of a staged process."""
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "HOME": "/nonexistent",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _can_use(stage: Stage) -> bool:
    """Return whether a test user can run *stage*."""
    try:
        return FIRST.run([stage.python, "-c", "import sbusd.protocol.packets, pydantic"], env=stage.env).returncode == 0
    except (PermissionError, FileNotFoundError, subprocess.SubprocessError):
        return False


def _copy_of_tree() -> Stage:
    """Copy the project and what it needs to where others can read it."""
    folder = open_folder()
    packages = folder / "packages"
    shutil.copytree(ROOT / "sbusd", folder / "sbusd", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(sysconfig.get_path("platlib"), packages, ignore=_ONLY_FOR_DEVELOPERS, symlinks=True)
    for entry in [folder, *folder.rglob("*")]:
        if not entry.is_symlink():
            entry.chmod(entry.stat().st_mode | (0o755 if entry.is_dir() else 0o444))
    stage = Stage(os.path.realpath(sys.executable), _environment([str(folder), str(packages)]), folder)
    if not _can_use(stage):
        stage.remove()
        raise RuntimeError(f"{stage.python} cannot be run by other users: make clean, then make build with the system's /usr/bin/python3")
    return stage
