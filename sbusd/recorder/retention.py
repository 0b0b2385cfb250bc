"""How long segments are kept: until their time is over, or the disk's share is used up. Spec: sbus-recorder(8).

A segment is first marked as removed in the index, then deleted. Whoever computes an hour anew sees from the mark that it is not all
there any more. Only this host's segments are touched; others share the archive.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sbusd.record.index import IndexEntry, Removal, read_index, write_entry
from sbusd.record.layout import HOUR_NS, hour_of


@dataclass(slots=True)
class Removed:
    """What was removed for one reason."""

    segments: int = 0
    bytes: int = 0


class Retention:
    """The segments of one host in an archive. Not thread-safe, but for :attr:`bytes`."""

    def __init__(self, archive: Path, host: str, quota_bytes: int, keep_seconds: float) -> None:
        """*quota_bytes* bounds segments and write-ahead together; *keep_seconds* counts from the end of a segment's hour."""
        self.bytes = 0
        """Of all segments."""
        self._archive = archive
        self._host = host
        self._quota = quota_bytes
        self._keep_ns = int(keep_seconds * 1e9)
        self._entries: deque[IndexEntry] = deque()

    def load(self) -> None:
        """Read the index; finish a removal that was interrupted.

        Raises:
            RecordError: an entry is damaged.
            OSError: a file cannot be removed.
        """
        self._entries.clear()
        self.bytes = 0
        for entry in read_index(self._archive):
            if entry.host != self._host:
                continue
            if entry.is_removed:
                self._delete(entry)
            else:
                self._keep(entry)

    def add(self, entries: Iterable[IndexEntry]) -> None:
        """Take note of new segments; those that were there already are replaced."""
        for entry in entries:
            for known in [each for each in self._entries if each.path == entry.path]:
                self._entries.remove(known)
                self.bytes -= known.bytes
            self._keep(entry)

    def prune(self, now_ns: int, spool_bytes: int) -> dict[Removal, Removed]:
        """Remove what is too old, and then the oldest until *spool_bytes* and the segments are within the quota.

        Raises:
            OSError: something cannot be removed.
        """
        removed: dict[Removal, Removed] = {}
        while self._entries:
            oldest = self._entries[0]
            because: Removal
            if hour_of(oldest.min_ts) + HOUR_NS + self._keep_ns <= now_ns:
                because = "retention"
            elif self.bytes + spool_bytes > self._quota:
                because = "quota"
            else:
                break
            write_entry(self._archive, dataclasses.replace(oldest, removed_at=now_ns, removed_because=because))
            self._delete(oldest)
            self._entries.popleft()
            self.bytes -= oldest.bytes
            count = removed.setdefault(because, Removed())
            count.segments += 1
            count.bytes += oldest.bytes
        return removed

    def _keep(self, entry: IndexEntry) -> None:
        """Add one segment, in the order of its hour: most come last, those of a clock that was set back do not."""
        position = len(self._entries)
        while position and self._entries[position - 1].min_ts > entry.min_ts:
            position -= 1
        self._entries.insert(position, entry)
        self.bytes += entry.bytes

    def _delete(self, entry: IndexEntry) -> None:
        """Delete a segment's file, and its folders if they are empty then. Raises OSError."""
        path = self._archive / entry.path
        path.unlink(missing_ok=True)
        for folder in list(path.parents)[:3]:
            try:
                folder.rmdir()
            except OSError:
                return
