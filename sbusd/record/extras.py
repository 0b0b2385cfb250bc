"""Packages that the record, its tables and its report need, and that a distribution may lack: how whoever lacks them gets them.

The packages of the recorder have a file for Python's own start, ``sbus-recorder.pth`` beside ``sbusd``, that adds :data:`LOCAL` to where
every program looks for modules: behind all else, so that nothing there takes the place of what the distribution has.
"""

from __future__ import annotations

import shlex
from pathlib import Path

LOCAL = "/usr/local/lib/sbusd"
"""Where the administrator puts them: a folder of its own, so that nothing else on the machine changes with it."""

EXTRAS = {"recorder": ("pyarrow>=17",), "pipeline": ("plotly>=6.0", "pyarrow>=17", "pyspark==4.3.*")}
"""What each extra of the Python package asks for."""

_PATH_FILE = Path(__file__).parents[2] / "sbus-recorder.pth"


def how_to_install(extra: str, path_file: Path = _PATH_FILE) -> str:
    """Return the command that installs what *extra* asks for: where this program, packaged (*path_file* is there) or not, will find it."""
    if path_file.exists():
        return f"python3 -m pip install --target {LOCAL} {shlex.join(EXTRAS[extra])}"
    return f"pip install 'sbusd[{extra}]'"
