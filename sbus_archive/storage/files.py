"""Files of the record and the tables: modes that keep other users out, atomic writes, lock files, and errors. Spec: sbus-record(5)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import shlex
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_archive.storage.location import ArchivePath

FOLDER_MODE = 0o750

FILE_MODE = 0o640

UMASK = 0o777 & ~FOLDER_MODE
"""For files that other programs create, such as Spark."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a full disk."""


class _FileError(SbusError):
    """``path`` is the file, directory or object, ``reason`` says what is wrong with it."""

    def __init__(self, path: ArchivePath, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class RecordError(_FileError):
    """A file of the record is missing, damaged or invalid."""


class SegmentGoneError(RecordError):
    """A segment in the index does not exist: retention removed it, or another program did."""


class TablesError(SbusError):
    """Tables cannot be used: ``location`` is a file, a directory, an object or a URI, ``reason`` says why."""

    def __init__(self, location: ArchivePath | str, reason: str) -> None:
        super().__init__(f"{location}: {reason}")
        self.location = location
        self.reason = reason


class ExposedFolderError(SbusError, PermissionError):
    """Other users can enter a directory, and this program must not change its mode."""


class ForeignFolderError(SbusError):
    """A directory belongs to another user, whose programs could not replace what this user writes."""


def check_owner(folder: Path, command: Sequence[str]) -> None:
    """Raise ForeignFolderError if root would write into a *folder* of another user; it says how that user runs *command*.

    Raises:
        OSError: it cannot be examined.
    """
    try:
        owner = folder.stat().st_uid
    except FileNotFoundError:
        return
    if os.geteuid() == 0 and owner != 0:
        try:
            name = pwd.getpwuid(owner).pw_name
        except KeyError:
            raise ForeignFolderError(f"{folder}: owned by user {owner}, which has no name. Let root own it") from None
        # This user may not enter the working directory of root.
        again = f"cd / && {shlex.join(('runuser', '-u', name, '--', *command))}"
        raise ForeignFolderError(f"{folder}: owned by user {printable(name, 64)}. Run as this user: {printable(again)}")


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


def temporary(path: Path) -> Path:
    """Return the name of *path* while it is incomplete: in the same directory, ignored by readers."""
    return path.with_name(f".{path.name}.tmp")


@contextlib.contextmanager
def draft_of(target: Path) -> Iterator[Path]:
    """Give the temporary name of *target* to a block that writes the file; remove the file if the block fails.

    Otherwise an incomplete file keeps a full disk full.
    """
    draft = temporary(target)
    try:
        yield draft
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def publish_file(target: Path, content: bytes) -> None:
    """Write *content* to *target* atomically: a reader sees all of it or nothing, also after a power failure. Raises OSError."""
    with draft_of(target) as draft, create_private(draft) as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    publish_draft(draft, target)


def publish_draft(draft: Path, target: Path) -> None:
    """Rename *draft*, which is complete and synced, to *target*; the name is durable on return. Raises OSError."""
    draft.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in *folder* durable. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_MAX_BYTES = 20


class LockHeldError(SbusError):
    """Another process holds the lock; ``holder`` is its process id, or "unknown"."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path}: locked by process {holder}")
        self.holder = holder


def lock_file(path: Path, mode: int = 0o640) -> int:
    """Lock the file *path*, which is created with *mode*, and return its descriptor; the lock ends when that is closed.

    A full disk does not prevent it, unless the file must be created: then the file has no process id.

    Raises:
        LockHeldError: another process holds the lock.
        OSError: the file cannot be opened or locked.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeldError(path, _holder(fd)) from None
        _write_id(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _holder(fd: int) -> str:
    """Return the process id in the lock file *fd*, or "unknown"."""
    text = os.pread(fd, _MAX_BYTES, 0).decode("ascii", "replace").strip()
    return text if text.isdecimal() else "unknown"


def _write_id(fd: int) -> None:
    """Write the id of this process into the lock file *fd*, in place of that of an earlier one. Raises OSError."""
    text = f"{os.getpid()}\n".encode()
    try:
        # Truncated afterwards: so the text needs no new block of the disk.
        size = os.pwrite(fd, text, 0)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        size = 0
    os.ftruncate(fd, size)
