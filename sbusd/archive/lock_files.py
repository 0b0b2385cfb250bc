"""Lock files: a directory that one process at a time may use has a file with the id of this process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from sbusd.archive.files import NO_ROOM
from sbusd.protocol.errors import SbusError

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
