"""Private files and directories of the record and the tables, which other users cannot read. Spec: sbus-recorder(8)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from sbusd.protocol.errors import SbusError

FOLDER_MODE = 0o750

FILE_MODE = 0o640

UMASK = 0o777 & ~FOLDER_MODE
"""For files that other programs create, such as Spark."""


class ExposedFolderError(SbusError, PermissionError):
    """Other users can enter a directory, and this program must not change its mode."""


def make_folder(folder: Path) -> None:
    """Create *folder* and missing parents, with at most :data:`FOLDER_MODE`. Raises OSError."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(FOLDER_MODE, exist_ok=True)


def make_private(folder: Path, own_names: Iterable[str]) -> None:
    """Create *folder* if it is missing; remove the permissions of other users if they can enter it.

    The permissions are removed only if this user owns the directory, and all files in it match *own_names*, glob patterns. An archive
    that is
    ``/tmp`` by mistake must not lock out all users.

    Raises:
        ExposedFolderError: other users can enter it, and its mode must not be changed.
        OSError: it cannot be created or read.
    """
    make_folder(folder)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        mode = stat.S_IMODE(found.st_mode)
        if not mode & stat.S_IRWXO:
            return
        exposed, hint = f"{folder}: open to all users (mode {mode:04o})", f"Run chmod o-rwx {folder}, or use another directory"
        if found.st_uid != os.geteuid():
            raise ExposedFolderError(f"{exposed} and owned by user {found.st_uid}. {hint}")
        known = {path.name for pattern in own_names for path in folder.glob(pattern)}
        if foreign := sorted(set(os.listdir(fd)) - known):
            raise ExposedFolderError(f"{exposed}, and contains other files, such as {foreign[0]!r}. {hint}")
        os.fchmod(fd, mode & ~stat.S_IRWXO)
    finally:
        os.close(fd)


def create_private(path: Path) -> BinaryIO:
    """Open the file *path* for writing, truncated; its mode is at most :data:`FILE_MODE`, also if it existed. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    try:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & ~FILE_MODE:
            os.fchmod(fd, mode & FILE_MODE)
    except BaseException:
        os.close(fd)
        raise
    return os.fdopen(fd, "wb")
