"""The files of an archive in a directory of this machine, or of a mounted file system."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO

from sbusd.archive.files import create_private, draft_of, make_folder, publish_draft


class LocalStore:
    """A :class:`~sbusd.archive.storage.store.FileStore` in the directory ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, name: str) -> Path:
        """Return the whole path of *name*."""
        return self._root / name

    def names(self, folder: str) -> list[str]:
        """Return the names in *folder*, in any order. Raises FileNotFoundError, OSError."""
        return os.listdir(self._root / folder)

    def fingerprints(self, folder: str) -> dict[str, str]:
        """Return size and time of change of each file in *folder*. Raises FileNotFoundError, OSError."""
        found = {}
        with os.scandir(self._root / folder) as files:
            for each in files:
                with contextlib.suppress(FileNotFoundError):
                    status = each.stat()
                    found[each.name] = f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
        return found

    def is_folder(self, folder: str = "") -> bool:
        """Return whether *folder* is a directory."""
        return (self._root / folder).is_dir()

    def exists(self, name: str) -> bool:
        """Return whether *name* exists."""
        return (self._root / name).exists()

    def read(self, name: str, limit: int) -> bytes:
        """Return the first *limit* bytes of *name*. Raises OSError."""
        with (self._root / name).open("rb") as stream:
            return stream.read(limit)

    def digest(self, name: str) -> tuple[int, str]:
        """Return the size of *name* in bytes, and its SHA-256. Raises OSError."""
        with (self._root / name).open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            return stream.tell(), digest

    def source(self, name: str) -> Path:
        """Return the path of *name*, which need not exist."""
        return self._root / name

    def put(self, name: str, source: BinaryIO) -> None:
        """Write *name* atomically from the start of *source*; it is durable on return. Raises OSError."""
        target = self._root / name
        make_folder(target.parent)
        source.seek(0)
        with draft_of(target) as draft, create_private(draft) as stream:
            shutil.copyfileobj(source, stream)
            stream.flush()
            os.fsync(stream.fileno())
        publish_draft(draft, target)

    def delete(self, name: str) -> None:
        """Delete *name*, which need not exist, and its directories up to the root if they are empty. Raises OSError."""
        target = self._root / name
        target.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            for folder in target.parents:
                if folder == self._root:
                    return
                folder.rmdir()
