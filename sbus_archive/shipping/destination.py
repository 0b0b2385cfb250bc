"""The upkeep of the destination: removes expired segments, and merges index entries of past days so that its index stays short.

As in a directory, the index entry is marked first, and then the segment is deleted, so that a reader knows that the hour is incomplete.
Only the names in the list of shipped segments are considered: the index of the destination has those of all hosts, and is long.
"""

from __future__ import annotations

import dataclasses
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sbus_archive.record.compaction import DAYS_PER_TURN, Merged, compact
from sbus_archive.record.index import MissingEntryError, find_in, segment_of_entry
from sbus_archive.record.layout import HOUR_NS, SegmentName
from sbus_archive.record.shipped import ListHeader, ListWriter, ShippedList
from sbus_archive.shipping.log_messages import NOT_MERGED
from sbus_archive.storage.files import RecordError
from sbus_archive.storage.store import FileStore
from sbus_programs.systemd.log_records import Log

INTERVAL_SECONDS = 3600.0
"""Interval between searches; the first is at the start. Each lists the index of the destination once."""


class IndexMerger:
    """Merges the entries of *host* in *store*, of which this program is the only writer; *check* raises an error if it is not."""

    def __init__(
        self,
        store: FileStore,
        host: str,
        check: Callable[[], None],
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        *,
        date: Callable[[], int] = time.time_ns,
    ) -> None:
        """*date* returns the date by which a day has ended."""
        self.unreadable = 0
        """Number of files of the index that cannot be read and stay as they are; of the last search."""
        self._store = store
        self._host = host
        self._check = check
        self._log = log
        self._clock = clock
        self._date = date
        self._due = float("-inf")

    def turn(self) -> None:
        """Merge the entries of some days, if the last search was an hour ago.

        Raises:
            HostTakenError: another shipper uses the name of the host.
            DamagedCopyError, StorageError, OSError: the destination cannot be used.
        """
        if self._clock() < self._due:
            return
        try:
            merged = compact(self._store, self._host, self._date(), before_write=self._check)
        except RecordError as error:
            merged = Merged(unreadable=1, error=str(error))
        if merged.unreadable > self.unreadable:
            self._log.record(NOT_MERGED, count=merged.unreadable, reason=merged.error)
        self.unreadable = merged.unreadable
        if merged.days < DAYS_PER_TURN:
            self._due = self._clock() + INTERVAL_SECONDS


EXPIRED_LIST = "expired"
"""The name of the list of expired segments in the directory of the state."""

_INTERVAL_NS = HOUR_NS
"""A segment expires at the end of an hour."""


def expired_list(path: Path, header: ListHeader) -> ListWriter:
    """Return the list of expired segments in *path*, a new one if it does not belong to the list of shipped segments with *header*.

    Raises:
        RecordError: it is damaged.
        OSError: it cannot be read or written.
    """
    known = ShippedList(path)
    if path.exists():
        known.refresh()
    if known.header not in (None, header):
        path.unlink()
    return ListWriter(path, header)


class Expiry:
    """The retention of the segments in the list *shipped*, which are in *store*. *done* lists those that expired; it is durable."""

    def __init__(self, store: FileStore, shipped: ShippedList, done: ListWriter, keep_seconds: float) -> None:
        self.removed = 0
        """Number of segments that were removed."""
        self.unreadable = 0
        """Number of expired segments that stay, because their entries cannot be read; of the last call that looked for expired segments."""
        self._store = store
        self._shipped = shipped
        self._done = done
        self.keep_ns = int(keep_seconds * 1e9)
        self._searched_ns: int | None = None

    def remove(self, now_ns: int) -> Iterator[SegmentName]:
        """Remove the segments that are expired at *now_ns*, and yield each. A repeated call finishes what was interrupted.

        It does nothing if the last call that was completed was less than an hour ago.

        Raises:
            StorageError, OSError: the store, or the list of expired segments, cannot be used.
        """
        if not self.keep_ns or (self._searched_ns is not None and abs(now_ns - self._searched_ns) < _INTERVAL_NS):
            return
        self.unreadable = 0
        for text in sorted(name for name in self._shipped if name not in self._done):
            name = segment_of_entry(text)
            if name is None or name.start_ns + HOUR_NS + self.keep_ns > now_ns:
                continue
            try:
                is_removed = self._remove(name, now_ns)
            except (ValueError, RecordError):
                self.unreadable += 1
                continue
            self._done.add(text)
            if is_removed:
                self.removed += 1
                yield name
        self._searched_ns = now_ns

    def _remove(self, name: SegmentName, now_ns: int) -> bool:
        """Mark the entry of one segment, and delete the segment; return whether it existed.

        The mark of a segment in a day file has a file of its own until it is merged. Raises ValueError, RecordError: the entry is invalid.
        """
        try:
            entry = find_in(self._store, name)
        except MissingEntryError:
            # Nothing was shipped: the recorder removed the segment before.
            return False
        if entry.name != name:
            raise ValueError(f"the entry describes another segment, {entry.path}")
        if not entry.is_removed:
            marked = dataclasses.replace(entry, removed_at=now_ns, removed_because="retention")
            self._store.put(name.index_path, io.BytesIO((marked.to_json() + "\n").encode()))
        elif not self._store.exists(entry.path):
            return False
        self._store.delete(entry.path)
        return True
