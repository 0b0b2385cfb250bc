"""Removes expired segments of this host from the destination: the retention there is apart from that of the recorder.

As in a directory, the index entry is marked first, and then the segment is deleted, so that a reader knows that the hour is incomplete.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
from collections.abc import Iterator

from sbusd.archive.files import RecordError
from sbusd.archive.record.index import index_names, read_entry
from sbusd.archive.record.layout import HOUR_NS, SegmentName
from sbusd.archive.storage.location import ArchivePath
from sbusd.archive.storage.store import Store


class Expiry:
    """The retention of the segments of *host* in *store*, which is at *root*."""

    def __init__(self, root: ArchivePath, store: Store, host: str, keep_seconds: float) -> None:
        self.removed = 0
        """Number of segments that were removed."""
        self.unreadable = 0
        """Number of expired segments that stay, because their entries cannot be read."""
        self._root = root
        self._store = store
        self._host = host
        self._keep_ns = int(keep_seconds * 1e9)
        self._done: set[SegmentName] = set()

    def remove(self, now_ns: int) -> Iterator[SegmentName]:
        """Remove the segments that are expired at *now_ns*, and yield each. A repeated call finishes what was interrupted.

        Raises:
            StorageError, OSError: the store cannot be used.
        """
        if not self._keep_ns:
            return
        self.unreadable = 0
        for name in index_names(self._root, lambda _: None):
            if name.host != self._host or name in self._done or _end_ns(name) + self._keep_ns > now_ns:
                continue
            try:
                entry = read_entry(self._root / name.index_path)
            except RecordError:
                self.unreadable += 1
                continue
            if entry.name != name:
                self.unreadable += 1
                continue
            if not entry.is_removed:
                marked = dataclasses.replace(entry, removed_at=now_ns, removed_because="retention")
                self._store.put(name.index_path, io.BytesIO((marked.to_json() + "\n").encode()))
                self.removed += 1
            self._store.delete(entry.path)
            self._done.add(name)
            yield name


def _end_ns(name: SegmentName) -> int:
    """Return the end of the hour of *name*, in nanoseconds since 1970."""
    day = datetime.datetime.fromisoformat(name.date).replace(tzinfo=datetime.UTC)
    return (int(day.timestamp()) + name.hour * 3_600) * 10**9 + HOUR_NS
