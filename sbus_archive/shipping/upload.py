"""Ships one segment: verifies it, writes and reads back its object, then its index entry, so that no entry is without its segment."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import io
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from sbus_archive.record.index import DayName, find_entry, read_day, read_entry, segment_of_entry
from sbus_archive.record.layout import HOUR_NS, INDEX, MAX_ENTRY_BYTES, IndexEntry, hour_of
from sbus_archive.storage.files import RecordError
from sbus_archive.storage.ownership import Ownership
from sbus_archive.storage.store import Content, DifferentContentError, FileStore, put_once

_READINGS = 3
"""Number of times that a remote entry is read before it counts as damaged: a failing connection can damage what is read."""


class Outcome(enum.Enum):
    """What became of one segment."""

    SHIPPED = "shipped"
    PRESENT = "present"
    """The destination has it already."""
    LOST = "lost"
    """Retention of the recorder removed it before it was shipped."""
    EARLIER = "earlier"
    """Retention of the recorder removed it before the list of shipped segments was created."""
    EXPIRED = "expired"
    """The retention of the destination would remove it at once."""


class _CountedFile(io.FileIO):
    """A local segment that reports each part that is read."""

    def __init__(self, fd: int, progress: Callable[[], None]) -> None:
        super().__init__(fd, "rb")
        self._progress = progress

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next part."""
        self._progress()
        return super().read(-1 if size is None else size)


class Uploader:
    """Ships the segments of *archive* to *store*."""

    def __init__(
        self,
        archive: Path,
        store: FileStore,
        ownership: Ownership,
        keep_seconds: float = 0.0,
        progress: Callable[[], None] = lambda: None,
        *,
        since_ns: int = 0,
    ) -> None:
        """*keep_seconds* is the retention of the destination, 0 for none. *progress* is called again and again during a transfer.

        *since_ns* is the time since which segments are shipped, nanoseconds since 1970.
        """
        self.bytes = 0
        """Bytes of the segments that were shipped."""
        self._archive = archive
        self._store = store
        self._ownership = ownership
        self._keep_ns = int(keep_seconds * 1e9)
        self._progress = progress
        self._since_ns = since_ns

    def ship(self, name: str, now_ns: int) -> Outcome:
        """Ship the segment whose index entry has the file *name*. A repeated call changes nothing.

        Raises:
            RecordError: the local entry or segment is damaged.
            DifferentContentError: the destination has another segment, or entry, with the same name.
            HostTakenError: another shipper ships as the same host.
            DamagedCopyError, StorageError, OSError: the destination cannot be used, or the segment cannot be read.
        """
        entry = self._local(name)
        if entry.name.index_name != name:
            raise RecordError(self._archive / INDEX / name, f"invalid index entry: it describes another segment, {entry.path}")
        if (remote := self._remote(name)) is not None:
            self._compare(entry, remote)
            return Outcome.PRESENT
        if entry.removed_at is not None:
            return Outcome.LOST if entry.removed_at >= self._since_ns else Outcome.EARLIER
        if self._keep_ns and hour_of(entry.min_ts) + HOUR_NS + self._keep_ns <= now_ns:
            return Outcome.EXPIRED
        try:
            source = self._open(entry)
        except FileNotFoundError:
            if self._local(name).is_removed:
                return Outcome.LOST
            raise RecordError(self._archive / entry.path, "missing, but named in the index") from None
        except OSError as error:
            # Not a failure of the destination: the other segments must not wait for it.
            raise RecordError(self._archive / entry.path, f"cannot read file: {error.strerror}") from None
        with source:
            self._verify(entry, source)
            # Without an index entry, an object of this name is the rest of an interrupted upload.
            wanted = Content(entry.bytes, entry.sha256)
            put_once(self._store, entry.path, source, self._archive / entry.path, wanted, before_write=lambda: self._check(entry, name))
        self._put_entry(entry, name)
        self.bytes += entry.bytes
        return Outcome.SHIPPED

    def _local(self, name: str) -> IndexEntry:
        """Return the index entry in the archive. Raises RecordError."""
        segment = segment_of_entry(name)
        return read_entry(self._archive / INDEX / name) if segment is None else find_entry(self._archive, segment)

    def _remote(self, name: str) -> IndexEntry | None:
        """Return the index entry in the destination, None if it does not exist, or is the damaged rest of an interrupted upload."""
        for _ in range(_READINGS):
            try:
                return IndexEntry.from_json(self._store.read(f"{INDEX}/{name}", MAX_ENTRY_BYTES).decode())
            except FileNotFoundError:
                return self._remotely_merged(name)
            except ValueError:
                continue
        return None

    def _remotely_merged(self, name: str) -> IndexEntry | None:
        """Return the index entry in a day file of the destination, None if there is none. Raises RecordError: the file is damaged."""
        segment = segment_of_entry(name)
        return None if segment is None else read_day(self._store, DayName(segment.date, segment.host)).get(segment.path)

    def _compare(self, entry: IndexEntry, remote: IndexEntry) -> None:
        """Raise DifferentContentError unless *remote* describes the segment of *entry*."""
        mine, found = Content(entry.bytes, entry.sha256), Content(remote.bytes, remote.sha256)
        if mine != found or remote.path != entry.path:
            raise DifferentContentError(self._store.path(entry.path), found, self._archive / entry.path, mine)

    def _check(self, entry: IndexEntry, name: str) -> None:
        """Raise HostTakenError or DifferentContentError if another machine has taken the name of the host, or of the segment."""
        self._ownership.check()
        if (remote := self._remote(name)) is not None:
            self._compare(entry, remote)

    def _put_entry(self, entry: IndexEntry, name: str) -> None:
        """Write the index entry of a segment that was shipped."""
        content = (dataclasses.replace(entry, removed_at=None, removed_because=None).to_json() + "\n").encode()
        wanted = Content(len(content), hashlib.sha256(content).hexdigest())
        origin = self._archive / INDEX / name
        put_once(self._store, f"{INDEX}/{name}", io.BytesIO(content), origin, wanted, before_write=lambda: self._check(entry, name))

    def _open(self, entry: IndexEntry) -> BinaryIO:
        """Return the local segment. Raises FileNotFoundError, RecordError if it is not a regular file, OSError."""
        path = self._archive / entry.path
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise RecordError(path, "not a regular file")
        return cast("BinaryIO", _CountedFile(fd, self._progress))

    def _verify(self, entry: IndexEntry, source: BinaryIO) -> None:
        """Compare the local segment with its entry. Raises RecordError: a damaged segment is not shipped."""
        digest = hashlib.sha256()
        size = 0
        try:
            while part := source.read(1 << 20):
                digest.update(part)
                size += len(part)
        except OSError as error:
            raise RecordError(self._archive / entry.path, f"cannot read file: {error.strerror}") from None
        if (size, digest.hexdigest()) != (entry.bytes, entry.sha256):
            raise RecordError(
                self._archive / entry.path, "checksum mismatch: the segment is damaged, or its index entry describes another file"
            )
