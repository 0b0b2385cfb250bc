"""The file for the textfile collector of node_exporter, which may read it at any time: so it is replaced, never written in place."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sbusd.protocol.errors import SbusError
from sbusd.protocol.printable import printable

SUFFIX = ".prom"
"""node_exporter reads only files whose names end so."""

MODE = 0o644
"""Mode of the file: node_exporter is another user."""


class TextFileError(SbusError, ValueError):
    """The file cannot be one of node_exporter; the text is one line."""


def check_name(path: Path) -> None:
    """Raise TextFileError unless node_exporter would read a file of this name."""
    if path.suffix != SUFFIX:
        raise TextFileError(f"{printable(str(path))}: node_exporter reads only files whose names end with {SUFFIX}")


def replace(path: Path, content: bytes) -> None:
    """Replace *path* by a file with *content* and the mode 0644. Raises OSError, then *path* is as it was."""
    try:
        # The name has another suffix, so that node_exporter does not read a part of it.
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), MODE)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
