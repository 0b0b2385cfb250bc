"""Merges the index entries of past days into day files. Spec: sbus-record(5).

Only the owner of a host's entries may do that: the recorder in its archive, sbus-ship(8) in its destination. A day file is complete before
the entries that it replaces are deleted, so a reader finds each entry at any time, and a compaction that was interrupted can be repeated.
"""

from __future__ import annotations

import datetime
import hashlib
import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sbus_archive.record.index import (
    MAX_DAY_BYTES,
    DayName,
    encode_day,
    newer,
    read_day,
    read_files,
    segment_of_entry,
    single_names,
)
from sbus_archive.record.layout import INDEX, IndexEntry
from sbus_archive.storage.files import RecordError
from sbus_archive.storage.store import Content, FileStore, put_once

GRACE_NS = 6 * 3_600 * 10**9
"""Time after the end of a day until its entries are merged: by then the last segment of the day is usually complete and shipped."""

DAYS_PER_TURN = 32
"""Maximum number of days of one call of :func:`compact`: about a second. An archive from before day files is merged in several turns."""


@dataclass(slots=True)
class Merged:
    """What one call of :func:`compact` did."""

    days: int = 0
    entries: int = 0
    unreadable: int = 0
    """Entries and day files that cannot be read; they stay as they are."""
    error: str = ""
    """Why the first of them cannot be read."""

    def skip(self, error: RecordError) -> None:
        """Count a file that cannot be read."""
        self.unreadable += 1
        self.error = self.error or str(error)


def compact(
    store: FileStore,
    host: str,
    now_ns: int,
    *,
    may_merge: Callable[[str], bool] = lambda _name: True,
    before_write: Callable[[], None] = lambda: None,
) -> Merged:
    """Merge the entries of *host* in *store*, an archive, for days that ended before *now_ns*, nanoseconds since 1970.

    One call merges at most :data:`DAYS_PER_TURN` days.

    *may_merge* returns whether the entry with a file name may be merged. *before_write* is called before a day file is written; it raises
    an error if another program writes the entries of *host*.

    Raises:
        DamagedCopyError: the store does not return what was written.
        RecordError: the index cannot be read.
        StorageError, OSError: the archive cannot be read or written.
    """
    done = Merged()
    last = datetime.datetime.fromtimestamp((now_ns - GRACE_NS) // 10**9, datetime.UTC).date().isoformat()
    by_day: defaultdict[str, list[str]] = defaultdict(list)
    for name in single_names(store):
        segment = segment_of_entry(name)
        if segment is not None and segment.host == host and segment.date < last and may_merge(name):
            by_day[segment.date].append(name)
    for date in sorted(by_day):
        if done.days == DAYS_PER_TURN:
            break
        try:
            _merge(store, DayName(date, host), by_day[date], done, before_write)
        except RecordError as error:
            done.skip(error)
    return done


def _merge(store: FileStore, day: DayName, names: Iterable[str], done: Merged, before_write: Callable[[], None]) -> None:
    """Merge the entries in the files *names* into the day file *day*, and delete them. Raises what :func:`compact` raises."""
    found = dict(read_files(store, names, done.skip))
    before = read_day(store, day)
    entries = dict(before)
    merged = []
    size = sum(len(entry.to_json()) + 1 for entry in entries.values())
    for name, entry in found.items():
        size += len(entry.to_json()) + 1
        if size > MAX_DAY_BYTES:
            break  # the others stay as they are
        entries[entry.path] = newer(entries.get(entry.path), entry)
        merged.append(name)
    if not merged:
        return
    if entries != before:
        _write(store, day, entries, before_write)
    for name in merged:
        store.delete(f"{INDEX}/{name}")
    done.days += 1
    done.entries += len(merged)


def _write(store: FileStore, day: DayName, entries: Mapping[str, IndexEntry], before_write: Callable[[], None]) -> None:
    """Write the day file and read it back."""
    content = encode_day(entries.values())
    wanted = Content(len(content), hashlib.sha256(content).hexdigest())
    put_once(store, day.path, io.BytesIO(content), store.path(day.path), wanted, before_write=before_write)
