"""The index entries that earlier runs have seen: their file names, one JSON string in each line.

A name is added after the tables of its hours were published. A run that is killed before that adds none, so the next run computes these
hours again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from sbusd.archive.files import FILE_MODE, sync_folder

KNOWN_ENTRIES = ".known-entries"
"""The name of the file in the directory of the tables."""


class KnownEntries:
    """The names in the file *path*, which need not exist. A line that a killed run wrote in part names no entry."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises OSError."""
        self._path = path
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = b""
        self._lines = set(content.splitlines())
        self._is_torn = bool(content) and not content.endswith(b"\n")

    def new_among(self, names: Iterable[str]) -> list[str]:
        """Return those of *names* that are not known."""
        return [name for name in names if _line(name) not in self._lines]

    def add(self, names: Iterable[str]) -> None:
        """Add *names*; they are durable on return. Raises OSError."""
        lines = [_line(name) for name in names]
        if not lines:
            return
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(fd, "wb") as stream:
            stream.write(b"\n" * self._is_torn + b"".join(line + b"\n" for line in lines))
            stream.flush()
            os.fsync(stream.fileno())
        sync_folder(self._path.parent)
        self._lines.update(lines)
        self._is_torn = False

    def forget(self) -> None:
        """Remove all names. Raises OSError."""
        self._path.unlink(missing_ok=True)
        self._lines.clear()
        self._is_torn = False


def _line(name: str) -> bytes:
    """Return the line for *name*, which is ASCII without line breaks."""
    return json.dumps(name).encode("ascii")
