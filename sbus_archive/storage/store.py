"""The storage interface: what readers of an archive and sbus-ship(8) need, the same for a directory and an object store."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from sbus.protocol.errors import SbusError
from sbus_archive.storage.files import create_private, draft_of, make_folder, publish_draft
from sbus_archive.storage.location import ArchivePath

if TYPE_CHECKING:
    from pyarrow import PythonFile

    from sbus_archive.storage.objects import ObjectClient


class LocalStore:
    """A :class:`~sbus_archive.storage.store.FileStore` in the directory ``root``."""

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


class FileStore(Protocol):
    """The files below one location. Names are relative to it; errors name the whole path.

    Each method also raises :class:`~sbus_archive.storage.attempts.StorageError` if an object store cannot be used, and LocationError for a
    name that could leave the location.
    """

    def path(self, name: str) -> ArchivePath:
        """Return the whole path of *name*."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files directly in *folder*, in any order. Raises FileNotFoundError: it does not exist; OSError."""

    def fingerprints(self, folder: str) -> dict[str, str]:
        """Return for each file directly in *folder* a text that changes when the file is replaced. Raises as :meth:`names`."""

    def is_folder(self, folder: str = "") -> bool:
        """Return whether *folder* exists; in an object store: whether a name begins with it."""

    def exists(self, name: str) -> bool:
        """Return whether the file *name* exists."""

    def read(self, name: str, limit: int) -> bytes:
        """Return the first *limit* bytes of the file *name*. Raises FileNotFoundError, OSError."""

    def digest(self, name: str) -> tuple[int, str]:
        """Return the size of the file *name* in bytes, and its SHA-256. Raises FileNotFoundError, OSError."""

    def source(self, name: str) -> Path | PythonFile:
        """Return what PyArrow can open to read the file *name*. Raises FileNotFoundError for a missing object."""

    def put(self, name: str, source: BinaryIO) -> None:
        """Write the file *name* from the start of *source*, in place of an older one; it is complete and durable on return.

        A reader never sees a part of it. Raises OSError.
        """

    def delete(self, name: str) -> None:
        """Delete the file *name*, which need not exist. Raises OSError."""


def store_of(root: ArchivePath) -> FileStore:
    """Return the store at *root*. Raises StorageError: its client is not available."""
    if isinstance(root, Path):
        return LocalStore(root)
    from sbus_archive.storage.objects import ObjectStore  # noqa: PLC0415 - only remote archives need the clients of PyArrow

    return ObjectStore(root, _client(root.scheme, root.authority, os.getpid()))


@functools.lru_cache(maxsize=16)
def _client(scheme: str, authority: str, _pid: int) -> ObjectClient:
    """Return the client of a store. A child of fork(2) gets a new one, because connections and threads are those of its parent."""
    from sbus_archive.storage.objects import ObjectClient, connect  # noqa: PLC0415

    return ObjectClient(functools.partial(connect, scheme, authority), scheme, authority)


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
