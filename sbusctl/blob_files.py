"""Files with blobs: those of received messages are in one directory, and their names never leave it, whatever the keys are.

A file that cannot be written whole, for example because the disk is full, does not remain.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sbus import BlobMessage

MAX_NAME_CHARACTERS = 100
"""Maximum length of the part of a name that comes from the key."""

_CHUNK_BYTES = 8 << 20
"""Bytes of one write: a signal interrupts only between two of them."""

_OTHER = re.compile(r"[^A-Za-z0-9._-]+")


class BlobFolder:
    """The directory *path*. Existing files are not replaced."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers = itertools.count(1)

    def save(self, message: BlobMessage) -> Path:
        """Write the blob of *message* into a new file, which only this user can read, and return its path. Raises OSError."""
        words = _OTHER.sub("_", message.key)[:MAX_NAME_CHARACTERS]
        while True:
            path = self._path / f"{next(self._numbers):06}-{words}"
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                continue
            with _removed_on_error(path):
                _write(fd, message.blob)
            return path


def write_file(path: Path, data: memoryview) -> None:
    """Write *data* into the file *path*, which then only this user can read. A regular file is replaced when all is written.

    Raises:
        OSError: it cannot be written; a regular file is then what it was.
    """
    target = Path(os.path.realpath(path))
    try:
        is_regular = stat.S_ISREG(target.stat().st_mode)
    except FileNotFoundError:
        is_regular = True
    if not is_regular:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            _write(fd, data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        return
    try:
        fd, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    except OSError as error:
        # The name of the temporary file means nothing to the user.
        raise OSError(error.errno, error.strerror, str(path)) from None
    with _removed_on_error(Path(name)):
        _write(fd, data)
        os.replace(name, target)


@contextlib.contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    """Remove *path* if the block raises an exception, also for Ctrl-C. An OSError without a name gets that of *path*."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):
            path.unlink()
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _write(fd: int, data: memoryview) -> None:
    """Write *data*, and close *fd*. Raises OSError, also if the disk reports an error only then."""
    with os.fdopen(fd, "wb", buffering=0) as file:
        while data:
            data = data[file.write(data[:_CHUNK_BYTES]) :]
