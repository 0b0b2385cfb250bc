"""Where another user finds Python and this project: for the demonstration, and for tests.

A clone is often in a folder that other users cannot enter: in /root, or in a directory of mktemp(1). Then the needed files are
copied to a place they can read, so that what needs two users works wherever the clone is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The root of the source tree."""

HOUSES = ("sbus", "sbus_archive", "sbus_programs", "sbus_services", "sbusctl", "sbusd")
"""The packages of the project: each has a README.md that says what is in it."""


def house_files(*suffixes: str, root: Path = ROOT) -> list[Path]:
    """Return the files of the packages in *root* that end with one of *suffixes*, such as ``.py``, sorted."""
    return sorted(path for house in HOUSES for path in (root / house).rglob("*") if path.suffix in suffixes)


NOBODY = 65_534
"""A user and a group that own nothing: files that they can read are readable by all users."""

_BEING_WRITTEN = "*.pyc.*"
"""Byte code that another process writes now; finished, it is copied too, or each start of a program would compile all that it imports."""

_NOT_FOR_OTHERS = shutil.ignore_patterns(
    _BEING_WRITTEN, "pip*", "mypy*", "ruff*", "atheris*", "*_fuzzer*", "hypothesis*", "Cython*", "cython*", "setuptools*",
    "__editable__*", "*.pth", "*__mypyc*", "pytest*", "_pytest*", "xdist*", "execnet*", "pyspark*", "py4j*", "plotly*",
    "duckdb*", "_duckdb*", "polars*", "_polars*", "moto*", "boto*", "cfnlint*", "cfn_lint*", "sympy*", "networkx*",
)  # fmt: skip
"""What developers need, and what makes tables and reports, which no other user has to: Spark alone is half a gigabyte."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A Python that anybody can run, with this project on its path."""

    python: str
    env: dict[str, str]
    """All that the process needs in its environment."""
    folder: Path | None = None
    """What was copied, or None where the tree itself can be read."""

    def program(self, name: str, *arguments: str) -> list[str]:
        """Return the command that runs this project's program *name*, such as ``sbusctl``, with *arguments*."""
        installed = Path(self.python).with_name(name)
        if self.folder is None and installed.is_file():
            return [str(installed), *arguments]
        # Not installed; or installed with a first line that names an interpreter which others cannot reach.
        module, function = _programs()[name].split(":")
        return [self.python, "-c", f"from {module} import {function} as run; run()", *arguments]

    def remove(self) -> None:
        """Remove what was copied."""
        if self.folder is not None:
            shutil.rmtree(self.folder)


def open_folder(stem: str = "sbus") -> Path:
    """Make a folder with a short name, which begins with *stem*, that every user can enter; the caller removes it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{stem}-", dir="/tmp"))
    folder.chmod(0o755)
    return folder


def own_stage() -> Stage:
    """Return the tree itself, for the user who runs this."""
    return Stage(sys.executable, _environment([str(ROOT)]))


def make_stage() -> Stage:
    """Return a stage: the tree itself where any user can run it, a copy of it elsewhere. Only root needs a copy, to act as others.

    Raises:
        RuntimeError: no Python of this version can be run by others.
    """
    plain = own_stage()
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


def _programs() -> dict[str, str]:
    """Return the project's programs, each with the function that it runs, as ``module:function``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    scripts: dict[str, str] = project["project"]["scripts"]
    return scripts


def _can_use(stage: Stage) -> bool:
    """Return whether a user without any rights can run *stage*."""
    command = [stage.python, "-c", "import sbus.protocol.packets, pydantic"]
    try:
        done = subprocess.run(command, cwd="/", env=stage.env, capture_output=True, check=False, user=NOBODY, group=NOBODY, extra_groups=[])
    except OSError:  # the interpreter itself is out of reach
        return False
    return done.returncode == 0


def _copy_of_tree() -> Stage:
    """Copy the project and what it needs to where others can read it."""
    folder = open_folder()
    packages = folder / "packages"
    for house in HOUSES:
        shutil.copytree(ROOT / house, folder / house, ignore=shutil.ignore_patterns(_BEING_WRITTEN))
    shutil.copytree(sysconfig.get_path("platlib"), packages, ignore=_NOT_FOR_OTHERS, symlinks=True)
    for entry in [folder, *folder.rglob("*")]:
        if not entry.is_symlink():
            entry.chmod(entry.stat().st_mode | (0o755 if entry.is_dir() else 0o444))
    stage = Stage(os.path.realpath(sys.executable), _environment([str(folder), str(packages)]), folder)
    if not _can_use(stage):
        stage.remove()
        raise RuntimeError(f"{stage.python} cannot be run by other users: make clean, then make build with the system's /usr/bin/python3")
    return stage
