"""The storage interface: what readers of an archive and sbus-ship(8) need, for a directory and for an object store alike."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from sbusd.archive.storage.local import LocalStore
from sbusd.archive.storage.location import ArchivePath

if TYPE_CHECKING:
    from pyarrow import PythonFile

    from sbusd.archive.storage.objects import ObjectClient


class FileStore(Protocol):
    """The files below one location. Names are relative to it; errors name the whole path.

    Each method also raises :class:`~sbusd.archive.storage.attempts.StorageError` if an object store cannot be used, and LocationError for a
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
    from sbusd.archive.storage.objects import ObjectStore  # noqa: PLC0415 - only remote archives need the clients of PyArrow

    return ObjectStore(root, _client(root.scheme, root.authority, os.getpid()))


@functools.lru_cache(maxsize=16)
def _client(scheme: str, authority: str, _pid: int) -> ObjectClient:
    """Return the client of a store. A child of fork(2) gets a new one, because connections and threads are those of its parent."""
    from sbusd.archive.storage.objects import ObjectClient, connect  # noqa: PLC0415

    return ObjectClient(functools.partial(connect, scheme, authority), scheme, authority)
