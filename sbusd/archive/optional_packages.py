"""Packages that the record, its tables and its report need, and that a distribution may lack: where they are, and how to get them.

A distribution's programs look for them in :data:`LOCAL` too, behind all else, so that nothing there takes the place of what the
distribution has. Only the programs that need them do: no other Python of the machine sees that folder.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import MutableMapping
from pathlib import Path

LOCAL = "/usr/local/lib/sbusd"
"""Where the administrator puts them: a folder of its own, so that nothing else on the machine changes with it."""

EXTRAS = {"recorder": ("pyarrow>=17",), "pipeline": ("plotly>=6.0", "pyarrow>=17", "pyspark==4.3.*")}
"""What each extra of the Python package asks for."""

_DISTRIBUTIONS = ("/usr/lib/", "/usr/lib64/")
"""Where distributions install Python packages; pip and virtual environments have theirs elsewhere."""

_OURS = Path(__file__)

_PYTHON_PATH = "PYTHONPATH"


def use_local_packages(module: Path = _OURS) -> None:
    """Look for modules in :data:`LOCAL` too, where *module* of this project is a distribution's. Call it before they are imported."""
    if _is_packaged(module) and LOCAL not in sys.path:
        sys.path.append(LOCAL)


def pass_local_packages(environ: MutableMapping[str, str], module: Path = _OURS) -> None:
    """Have the Python processes that are started with *environ* look there too, where *module* is a distribution's."""
    before = [each for each in environ.get(_PYTHON_PATH, "").split(os.pathsep) if each]
    if _is_packaged(module) and LOCAL not in before:
        environ[_PYTHON_PATH] = os.pathsep.join([*before, LOCAL])


def how_to_install(extra: str, module: Path = _OURS) -> str:
    """Return the command that installs what *extra* asks for: where this program, a distribution's or not, will find it."""
    if _is_packaged(module):
        return f"python3 -m pip install --target {LOCAL} {shlex.join(EXTRAS[extra])}"
    return f"pip install 'sbusd[{extra}]'"


def _is_packaged(module: Path) -> bool:
    """Return whether *module* is installed as a distribution does it."""
    return str(module).startswith(_DISTRIBUTIONS)
