"""How long segments are kept: until their time is over, or the disk's share is used up. Spec: sbus-recorder(8).

When the quota is used up, the segments of the user with the most bytes go first: a flood costs its own user's record.

A segment is first marked as removed in the index, then deleted. Whoever computes an hour anew sees from the mark that it is not all
there any more. Only this host's segments are touched; others share the archive.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sbusd.record.index import IndexEntry, Removal, read_index, write_entry
from sbusd.record.layout import HOUR_NS, hour_of
from sbusd.recorder.shares import heaviest, owners


@dataclass(slots=True)
class Removed:
    """What was removed for one reason."""

    segments: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Part:
    """The segments of one user, or the common ones, in the order of their hours."""

    bytes: int = 0
    charged: int = 0
    """What of it its users have caused: in segments with few rows most is the form of the file, which is nobody's fault."""
    entries: deque[IndexEntry] = field(default_factory=deque)


class Retention:
    """The segments of one host in an archive. Not thread-safe, but for :attr:`bytes` and :attr:`largest`."""

    def __init__(self, archive: Path, host: str, quota_bytes: int, keep_seconds: float) -> None:
        """*quota_bytes* bounds segments and write-ahead together; *keep_seconds* counts from the end of a segment's hour."""
        self.bytes = 0
        """Of all segments."""
        self.largest: tuple[int, int] | None = None
        """The user who has most in segments of their own, and their bytes."""
        self._archive = archive
        self._host = host
        self._quota = quota_bytes
        self._keep_ns = int(keep_seconds * 1e9)
        self._parts: dict[int | None, _Part] = {}
        self._common: Counter[int] = Counter()
        """Bytes of each user's rows in common segments, before compression."""

    def load(self) -> None:
        """Read the index; finish a removal that was interrupted.

        Raises:
            RecordError: an entry is damaged.
            OSError: a file cannot be removed.
        """
        self._parts.clear()
        self._common.clear()
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
            for part in list(self._parts.values()):
                for known in [each for each in part.entries if each.path == entry.path]:
                    self._forget(known)
            self._keep(entry)

    def owners(self, new: Mapping[int, int]) -> frozenset[int]:
        """Return the users of a write-ahead, with the bytes of each in it, whose rows are to get segments of their own."""
        return owners(new, self._common, [uid for uid in self._parts if uid is not None], self._quota)

    def prune(self, now_ns: int, spool_bytes: int) -> dict[tuple[Removal, int | None], Removed]:
        """Remove what is too old, and then, until *spool_bytes* and the segments are within the quota, the oldest of who has most.

        Return what was removed, by the reason and the user; None are the common segments.

        Raises:
            OSError: something cannot be removed.
        """
        removed: dict[tuple[Removal, int | None], Removed] = {}
        while (found := self._next(now_ns, spool_bytes)) is not None:
            entry, because = found
            write_entry(self._archive, dataclasses.replace(entry, removed_at=now_ns, removed_because=because))
            self._delete(entry)
            self._forget(entry)
            count = removed.setdefault((because, entry.uid), Removed())
            count.segments += 1
            count.bytes += entry.bytes
        return removed

    def _next(self, now_ns: int, spool_bytes: int) -> tuple[IndexEntry, Removal] | None:
        """Return the segment that is to go now, and why; None if all may stay."""
        for part in self._parts.values():
            if hour_of(part.entries[0].min_ts) + HOUR_NS + self._keep_ns <= now_ns:
                return part.entries[0], "retention"
        if not self._parts or self.bytes + spool_bytes <= self._quota:
            return None
        own = {uid: part.charged for uid, part in self._parts.items() if uid is not None}
        common = self._parts.get(None, _Part())
        return self._parts[heaviest(own, common.charged, len(self._common))].entries[0], "quota"

    def _keep(self, entry: IndexEntry) -> None:
        """Add one segment, in the order of its hour: most come last, those of a clock that was set back do not."""
        part = self._parts.setdefault(entry.uid, _Part())
        position = len(part.entries)
        while position and part.entries[position - 1].min_ts > entry.min_ts:
            position -= 1
        part.entries.insert(position, entry)
        self._count(part, entry, 1)

    def _forget(self, entry: IndexEntry) -> None:
        """Take out one segment."""
        part = self._parts[entry.uid]
        part.entries.remove(entry)
        self._count(part, entry, -1)
        if not part.entries:
            del self._parts[entry.uid]

    def _count(self, part: _Part, entry: IndexEntry, sign: int) -> None:
        """Count one segment more, or with a *sign* of -1 one less."""
        self.bytes += sign * entry.bytes
        part.bytes += sign * entry.bytes
        part.charged += sign * (min(entry.bytes, sum(entry.users.values())) if entry.users else entry.bytes)
        for uid, size in entry.users.items() if entry.uid is None else ():
            self._common[int(uid)] += sign * size
            if self._common[int(uid)] <= 0:
                del self._common[int(uid)]
        self.largest = max(
            ((uid, part.bytes) for uid, part in self._parts.items() if uid is not None), key=lambda each: each[1], default=None
        )

    def _delete(self, entry: IndexEntry) -> None:
        """Delete a segment's file, and its folders if they are empty then. Raises OSError."""
        path = self._archive / entry.path
        path.unlink(missing_ok=True)
        for folder in list(path.parents)[:3]:
            try:
                folder.rmdir()
            except OSError:
                return
