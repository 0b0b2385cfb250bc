"""The index entries that earlier runs have seen: their file names, one JSON string in each line.

A name is added after the tables of its hours were published. A run that is killed before that adds none, so the next run computes these
hours again.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable
from pathlib import Path

from sbusd.archive.files import FILE_MODE, sync_folder
from sbusd.archive.storage.location import ArchivePath
from sbusd.archive.storage.store import store_of

KNOWN_ENTRIES = ".known-entries"
"""The name of the file in the location of the tables."""

_MOST_BYTES = 1 << 32
"""More than all names of many years; memory is reserved for the size of the object only."""


class KnownEntries:
    """The names in the file at *root*, the location of the tables; it need not exist.

    In a directory names are appended; a line that a killed run wrote in part names no entry. An object is written as a whole.
    """

    def __init__(self, root: ArchivePath) -> None:
        """Read the file. Raises StorageError, OSError."""
        self._root = root
        self._store = store_of(root)
        try:
            # A read of a directory's file up to a limit would reserve that much memory.
            content = (root / KNOWN_ENTRIES).read_bytes() if isinstance(root, Path) else self._store.read(KNOWN_ENTRIES, _MOST_BYTES)
        except FileNotFoundError:
            content = b""
        self._lines = set(content.splitlines())
        self._is_torn = bool(content) and not content.endswith(b"\n")

    def new_among(self, names: Iterable[str]) -> list[str]:
        """Return those of *names* that are not known."""
        return [name for name in names if _line(name) not in self._lines]

    def add(self, names: Iterable[str]) -> None:
        """Add *names*; they are durable on return. Raises StorageError, OSError."""
        lines = [_line(name) for name in names]
        if not lines:
            return
        if isinstance(self._root, Path):
            self._append(self._root / KNOWN_ENTRIES, lines)
        else:
            self._store.put(KNOWN_ENTRIES, io.BytesIO(b"".join(line + b"\n" for line in sorted(self._lines | {*lines}))))
        self._lines.update(lines)

    def forget(self) -> None:
        """Remove all names. Raises StorageError, OSError."""
        self._store.delete(KNOWN_ENTRIES)
        self._lines.clear()
        self._is_torn = False

    def _append(self, path: Path, lines: Iterable[bytes]) -> None:
        """Append *lines* to the file *path*."""
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(fd, "wb") as stream:
            stream.write(b"\n" * self._is_torn + b"".join(line + b"\n" for line in lines))
            stream.flush()
            os.fsync(stream.fileno())
        sync_folder(path.parent)
        self._is_torn = False


def _line(name: str) -> bytes:
    """Return the line for *name*, which is ASCII without line breaks."""
    return json.dumps(name).encode("ascii")
