"""Optional packages of the record, the tables and the report: where they are installed, and how to install them.

Programs of a distribution package also search :data:`LOCAL`, last, so it cannot replace packages of the distribution. Other Python programs
do not search it.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import MutableMapping
from pathlib import Path

LOCAL = "/usr/local/lib/sbusd"
"""A separate directory for the administrator, so that other programs on the machine are not affected."""

EXTRAS = {"recorder": ("pyarrow>=17",), "pipeline": ("deltalake>=1.6.6", "plotly>=6.0", "pyarrow>=17", "pyspark==4.3.*")}
"""Requirements of each extra of the Python package."""

_DISTRIBUTIONS = ("/usr/lib/", "/usr/lib64/")
"""Directories of distribution packages; pip and virtual environments use others."""

_OURS = Path(__file__)

_PYTHON_PATH = "PYTHONPATH"


def use_local_packages(module: Path = _OURS) -> None:
    """Add :data:`LOCAL` to the search path if *module* is part of a distribution package. Call it before importing optional packages."""
    if _is_packaged(module) and LOCAL not in sys.path:
        sys.path.append(LOCAL)


def pass_local_packages(environ: MutableMapping[str, str], module: Path = _OURS) -> None:
    """Add :data:`LOCAL` to the search path of Python processes started with *environ*, if *module* is part of a distribution package."""
    before = [each for each in environ.get(_PYTHON_PATH, "").split(os.pathsep) if each]
    if _is_packaged(module) and LOCAL not in before:
        environ[_PYTHON_PATH] = os.pathsep.join([*before, LOCAL])


def how_to_install(extra: str, module: Path = _OURS) -> str:
    """Return the command that installs the requirements of *extra* where this program finds them."""
    if _is_packaged(module):
        return f"python3 -m pip install --target {LOCAL} {shlex.join(EXTRAS[extra])}"
    return f"pip install 'sbusd[{extra}]'"


def _is_packaged(module: Path) -> bool:
    """Return whether *module* is part of a distribution package."""
    return str(module).startswith(_DISTRIBUTIONS)
