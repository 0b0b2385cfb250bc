"""Writes files that never change: once, and read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from sbusd.archive.storage.location import ArchivePath
from sbusd.archive.storage.store import FileStore
from sbusd.protocol.errors import SbusError

_READINGS = 3
"""Number of times that a file is read before its content counts as wrong: a failing connection can damage what is read."""

_WRITINGS = 3
"""Number of times that a file is written before a wrong copy is an error."""


class Content(NamedTuple):
    """The content of a file, by its size in bytes and its SHA-256."""

    size: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.size} bytes, sha256 {self.sha256}"


class DifferentContentError(SbusError):
    """A file that never changes exists already, with other content."""

    def __init__(self, path: ArchivePath, found: Content, origin: ArchivePath, wanted: Content) -> None:
        super().__init__(f"{path}: exists with other content ({found}) than {origin} ({wanted})")
        self.path = path


class DamagedCopyError(SbusError):
    """A file was written, but does not have the content that was written."""


def put_once(
    store: FileStore, name: str, source: BinaryIO, origin: ArchivePath, wanted: Content, *, before_write: Callable[[], None] | None = None
) -> bool:
    """Write *source*, the content of *origin*, to *name*, and read it back; return whether it was written.

    If *name* has the *wanted* content already, it is not written. *before_write* is called before each write, and raises an error if other
    content must stay; without an error it is replaced, as the rest of an interrupted write, to which nothing refers.

    Raises:
        DifferentContentError: *name* has other content, and *before_write* is None.
        DamagedCopyError: the store does not return what was written.
        StorageError, OSError: the store cannot be used, or *source* cannot be read.
    """
    found = _content(store, name, wanted)
    if found == wanted:
        return False
    if found is not None and before_write is None:
        raise DifferentContentError(store.path(name), found, origin, wanted)
    for _ in range(_WRITINGS):
        if before_write is not None:
            before_write()
        store.put(name, source)
        found = _content(store, name, wanted)
        if found == wanted:
            return True
    raise DamagedCopyError(f"{store.path(name)}: does not have the content that was written: {found or 'missing'}; written: {wanted}")


def _content(store: FileStore, name: str, wanted: Content) -> Content | None:
    """Return the content of *name*, None if it is missing. It is read again unless it is *wanted*."""
    found: Content | None = None
    for _ in range(_READINGS):
        try:
            found = Content(*store.digest(name))
        except FileNotFoundError:
            return None
        if found == wanted:
            break
    return found
