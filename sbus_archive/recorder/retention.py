"""Removes segments after the retention time, or when the quota, which users share, is exceeded. Spec: sbus-recorder(8).

When the quota is exceeded, the segments of the user with the most bytes are removed first: a flood removes the record of its own user.

A segment is marked as removed in the index, then deleted. A later computation of the hour sees from the mark that the hour is incomplete.
If the disk has no room for the mark, the segment is deleted first. After a crash in between, the next removal marks it.
Only segments of this host are removed, because other hosts can share the archive.

`sbus_archive.recorder.converter` decides when, by a date that `sbus_programs.wall_clock` does not doubt.

If sbus-ship(8) copies the segments, the retention time removes only those that were shipped. The quota removes others too: a remote
outage must not stop the recorder.

Most users share common segments. A user whose rows in common segments exceed a limit gets dedicated segments from then on, which can be
removed without removing rows of others. With n users in the record the limit is a third of a fair share, and at most 1/128 of the quota.

An index entry lists a bounded number of users, and only listed users can be counted. If a write-ahead file has rows of more users, the
others share dedicated segments, and count as one user.

All ids that subuid(5) gives to a user count as that user: with many ids, each below the limit, it could otherwise have the segments of
others removed first. The index has the user that was charged when the segment was written.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sbus_archive.record.index import DayName, Unreadable, read_index, segment_of_entry, write_entry
from sbus_archive.record.layout import HOUR_NS, OTHERS, SUFFIX, IndexEntry, Removal, hour_of
from sbus_archive.record.shipped import ShippedList
from sbus_archive.storage.files import NO_ROOM, RecordError

ROW_BYTES = 256
"""Estimated bytes of a row without its text and payload."""

FEW_USERS = 32
"""The limit for rows in common segments assumes at least this number of users."""

MAX_USERS = 1_000
"""Maximum number of users that an index entry lists. The entry stays far below MAX_ENTRY_BYTES."""

_SIZED = ("key", "reason", "payload")

Key = TypeVar("Key", int, str)

_SPARE_ITEMS = 64
"""Number of outdated items that a small ranking may have."""


CHARGED = "charged"
"""The column of :func:`with_charged`, which segments do not have."""


def with_charged(rows: pa.Table, charged: Callable[[int], int]) -> pa.Table:
    """Return *rows* with the column :data:`CHARGED`: the user that *charged* returns for the uid of the row, null without one."""
    uids = rows.column("uid").combine_chunks()
    known = pc.unique(uids)
    users = pa.array([None if uid is None else charged(uid) for uid in known.to_pylist()], pa.int64())
    return rows.append_column(CHARGED, users.take(pc.index_in(uids, known)))


def bytes_by_user(rows: pa.Table) -> Counter[int]:
    """Return the bytes of *rows*, which have :data:`CHARGED`, by user, before compression: at least the size that they add to a file.
    Rows of the bus itself belong to no user."""
    size = pa.repeat(pa.scalar(ROW_BYTES, pa.int64()), rows.num_rows)
    for name in _SIZED:
        length = pc.fill_null(pc.binary_length(rows.column(name)), 0)
        size = pc.add(size, length.cast(pa.int64()).combine_chunks())
    sums = pa.table({"user": rows.column(CHARGED).combine_chunks(), "size": size}).group_by("user").aggregate([("size", "sum")])
    found = zip(sums.column("user").to_pylist(), sums.column("size_sum").to_pylist(), strict=True)
    return Counter({uid: total for uid, total in found if uid is not None})


def listed_users(sizes: Mapping[int, int]) -> dict[int, int]:
    """Return the part of *sizes*, bytes by user, that an index entry lists: the users with the lowest ids.

    Users of a directory service have higher ids than those with an account here, so they never displace these. The result
    depends on the rows only, so a retry gives the same result.
    """
    return {uid: sizes[uid] for uid in sorted(sizes)[:MAX_USERS]}


def user_label(uid: int | None) -> str:
    """Return a name for the users of segments of *uid*; None: common segments."""
    if uid is None:
        return "several users"
    return f"users beyond the {MAX_USERS} lowest user ids" if uid == OTHERS else f"user {uid}"


def common_limit(quota_bytes: int, users: int) -> int:
    """Return the maximum bytes of one of *users* in common segments."""
    return quota_bytes // (4 * max(FEW_USERS, users))


def separate_users(new: Mapping[int, int], common: Mapping[int, int], separate: Collection[int], quota_bytes: int) -> frozenset[int]:
    """Return the users that get dedicated segments: their bytes in common segments, including *new*, exceed the limit.

    *new* are the bytes by user in the current write-ahead file, *common* those in existing common segments; *separate* are the users
    that have
    dedicated segments.
    """
    limit = common_limit(quota_bytes, len(new.keys() | common.keys() | set(separate)))
    return frozenset(uid for uid, size in new.items() if common.get(uid, 0) + size > limit)


def next_to_remove(own: tuple[int, int] | None, common_bytes: int, common_users: int) -> int | None:
    """Return the user whose segments are removed first, or None for the common ones, if these have more bytes per user.

    *own* is the user with the most bytes in dedicated segments, and these bytes.
    """
    return None if own is None or common_bytes > own[1] * max(1, common_users) else own[0]


def spool_limit(quota_bytes: int, rotate_bytes: int) -> int:
    """Return the part of the quota for the write-ahead log. A flood that is faster than the conversion must not remove the record."""
    return min(quota_bytes, max(2 * rotate_bytes, quota_bytes // 4))


class Ranking(Generic[Key]):
    """Keys with a number each; the lowest number comes first, then the lowest key. Each call takes logarithmic time on average: a full
    disk must not make its cleanup slow."""

    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}
        self._items: list[tuple[int, Key]] = []
        """A heap. An item is outdated if its key is gone or has another number. It is removed when it becomes the first, or when most
        are outdated."""

    def __len__(self) -> int:
        return len(self._numbers)

    def put(self, key: Key, number: int) -> None:
        """Set the *number* of *key*."""
        if self._numbers.get(key) == number:
            return
        self._numbers[key] = number
        heappush(self._items, (number, key))
        self._tidy()

    def drop(self, key: Key) -> None:
        """Remove *key*. Raises KeyError if it does not exist."""
        del self._numbers[key]
        self._tidy()

    def first(self) -> Key | None:
        """Return the key with the lowest number, or None if the ranking is empty."""
        while self._items and self._numbers.get(self._items[0][1]) != self._items[0][0]:
            heappop(self._items)
        return self._items[0][1] if self._items else None

    def _tidy(self) -> None:
        """Remove outdated items if they are the majority."""
        if len(self._items) > 2 * len(self._numbers) + _SPARE_ITEMS:
            self._items = [(number, key) for key, number in self._numbers.items()]
            heapify(self._items)


_MAX_WAL_ROWS = 100_000_000
"""More rows than a file of the write-ahead log has, so more positions than a segment whose number is known."""


@dataclass(slots=True)
class Removed:
    """Segments that were removed for one reason."""

    segments: int = 0
    bytes: int = 0


class _UserSegments:
    """The segments of one user, or the common ones."""

    __slots__ = ("bytes", "charged", "order")

    def __init__(self) -> None:
        self.bytes = 0
        self.charged = 0
        """Bytes that count for the users. In a segment with few rows, most bytes are file format overhead, and do not count."""
        self.order: Ranking[str] = Ranking()
        """Paths, the oldest hour first. After the clock was set back, a new path is not the last."""


class Retention:
    """The segments of one host in an archive. Not thread-safe, except for :attr:`bytes` and :attr:`largest`."""

    def __init__(self, archive: Path, host: str, quota_bytes: int, keep_seconds: float, *, shipped: ShippedList | None = None) -> None:
        """*quota_bytes* limits segments and write-ahead log together; *keep_seconds* counts from the end of a segment's hour.

        With *shipped*, expired segments that it does not have are kept.
        """
        self.held = 0
        """Number of expired segments that are kept because they are not shipped."""
        self.held_because = ""
        """Why they are not shipped, as far as the list of shipped segments shows it."""
        self.unshipped = Removed()
        """Segments that were removed because of the quota before they were shipped."""
        self.bytes = 0
        """Bytes of all segments."""
        self.last_seq = 0
        """The highest ``seq`` in the index when it was loaded, also of removed segments; 0 without segments. Not less than that of
        segments whose entries are damaged."""
        self.newest_ns = 0
        """The latest date in the index when it was loaded; 0 without segments."""
        self.keep_ns = int(keep_seconds * 1e9)
        self.largest: tuple[int, int] | None = None
        """The user whose dedicated segments are removed first, and their bytes; OTHERS for the users that are not listed."""
        self.host = host
        self._archive = archive
        self._quota = quota_bytes
        self._shipped = shipped
        self._held: set[str] = set()
        """Paths of expired segments that are not shipped. They are not in ``_oldest``."""
        self._entries: dict[str, IndexEntry] = {}
        """All segments by path."""
        self._oldest: Ranking[str] = Ranking()
        """Paths of all other segments, the oldest first."""
        self._parts: dict[int | None, _UserSegments] = {}
        self._heaviest: Ranking[int] = Ranking()
        """Users with dedicated segments, in descending order of their charged bytes."""
        self._common: Counter[int] = Counter()
        """Bytes of each user's rows in common segments, before compression."""

    def load(self, unreadable: Unreadable = lambda _error: None) -> None:
        """Read the index, and finish an interrupted removal.

        *unreadable* is called for each damaged file of the index. Its segments are not removed, and do not count for the quota.

        Raises:
            RecordError: the archive cannot be read.
            OSError: a file cannot be removed.
        """
        for entry in list(self._entries.values()):
            self._forget(entry)

        def skip(error: RecordError) -> None:
            self._pass_over(error.path.name)
            unreadable(error)

        for entry in read_index(self._archive, skip, wanted=lambda _date, _hour, host: host == self.host):
            self.last_seq = max(self.last_seq, entry.last_seq)
            self.newest_ns = max(self.newest_ns, entry.max_ts)
            if entry.is_removed:
                self._delete(entry)
            else:
                self._keep(entry)

    def _pass_over(self, file: str) -> None:
        """Raise ``last_seq`` above the positions in the segments of *file*, a damaged one of the index: no position is used twice, and
        no segment is replaced."""
        if (segment := segment_of_entry(file)) is not None:
            numbers = [segment.first_seq]
        elif (day := DayName.parse(file)) is not None:
            numbers = [
                int(path.stem) for path in self._archive.glob(f"date={day.date}/hour=*/host={day.host}/*{SUFFIX}") if path.stem.isdecimal()
            ]
        else:
            return
        self.last_seq = max(self.last_seq, *(number + _MAX_WAL_ROWS for number in numbers), 0)

    def add(self, entries: Iterable[IndexEntry]) -> None:
        """Add new segments; they replace those with the same path."""
        for entry in entries:
            if (known := self._entries.get(entry.path)) is not None:
                self._forget(known)
            self._keep(entry)

    def separate_users(self, new: Mapping[int, int]) -> frozenset[int]:
        """Return the users that get dedicated segments. *new* are the bytes by user in a write-ahead file."""
        return separate_users(new, self._common, [uid for uid in self._parts if uid is not None], self._quota)

    def prune(self, now_ns: int, spool_bytes: int, *, before_ns: int | None = None) -> dict[tuple[Removal, int | None], Removed]:
        """Remove the segments of hours that ended before *before_ns*, by default the retention time before *now_ns*. Then remove the
        oldest segments of the largest users until segments and *spool_bytes* are within the quota.

        Return the removed segments by reason and user; None is for common segments, OTHERS for users that are not listed.

        Raises:
            OSError: a file cannot be removed.
        """
        self._read_shipped()
        removed: dict[tuple[Removal, int | None], Removed] = {}
        before_ns = now_ns - self.keep_ns if before_ns is None else before_ns
        while (found := self._next(before_ns, spool_bytes)) is not None:
            entry, because = found
            self._remove(dataclasses.replace(entry, removed_at=now_ns, removed_because=because))
            self._forget(entry)
            count = removed.setdefault((because, entry.uid), Removed())
            count.segments += 1
            count.bytes += entry.bytes
            if because == "quota" and not self._is_shipped(entry):
                self.unshipped.segments += 1
                self.unshipped.bytes += entry.bytes
        self.held = len(self._held)
        return removed

    def _next(self, before_ns: int, spool_bytes: int) -> tuple[IndexEntry, Removal] | None:
        """Return the segment to remove now, and the reason; None if all can stay."""
        while (oldest := self._oldest.first()) is not None:
            entry = self._entries[oldest]
            if hour_of(entry.min_ts) + HOUR_NS > before_ns:
                break
            if self._is_shipped(entry):
                return entry, "retention"
            self._oldest.drop(oldest)
            self._held.add(oldest)
        if not self._entries:
            return None
        if self.bytes + spool_bytes <= self._quota:
            return None
        uid = self._heaviest.first()
        own = None if uid is None else (uid, self._parts[uid].charged)
        common = self._parts.get(None)
        path = self._parts[next_to_remove(own, common.charged if common else 0, len(self._common))].order.first()
        return None if path is None else (self._entries[path], "quota")

    def _read_shipped(self) -> None:
        """Read what was shipped since the last call, and release these segments."""
        if self._shipped is None:
            return
        self.held_because = "sbus-ship has not shipped them yet"
        try:
            self._shipped.refresh()
        except FileNotFoundError:
            self.held_because = f"{self._shipped.path}: no such file; sbus-ship creates it"
        except (OSError, RecordError) as error:
            self.held_because = str(error)
        for path in [path for path in self._held if self._is_shipped(self._entries[path])]:
            self._held.remove(path)
            self._oldest.put(path, self._entries[path].min_ts)

    def is_shipped(self, name: str) -> bool:
        """Return whether the segment whose index entry has the file *name* was shipped, or nothing is shipped at all."""
        return self._shipped is None or name in self._shipped

    def _is_shipped(self, entry: IndexEntry) -> bool:
        """Return whether the segment of *entry* was shipped, or nothing is shipped at all."""
        return self.is_shipped(entry.name.index_name)

    def _keep(self, entry: IndexEntry) -> None:
        """Add one segment."""
        part = self._parts.setdefault(entry.uid, _UserSegments())
        self._entries[entry.path] = entry
        for order in (self._oldest, part.order):
            order.put(entry.path, entry.min_ts)
        self._count(part, entry, 1)

    def _forget(self, entry: IndexEntry) -> None:
        """Forget one segment."""
        part = self._parts[entry.uid]
        del self._entries[entry.path]
        part.order.drop(entry.path)
        if entry.path in self._held:
            self._held.remove(entry.path)
        else:
            self._oldest.drop(entry.path)
        self._count(part, entry, -1)

    def _count(self, part: _UserSegments, entry: IndexEntry, sign: int) -> None:
        """Add the sizes of one segment, or subtract them with a *sign* of -1. Forget a user without segments."""
        self.bytes += sign * entry.bytes
        part.bytes += sign * entry.bytes
        rows = entry.unnamed + sum(entry.users.values())
        part.charged += sign * (min(entry.bytes, rows) if rows else entry.bytes)
        if not part.order:
            del self._parts[entry.uid]
        if entry.uid is None:
            self._count_users(entry, sign)
            return
        if part.order:
            self._heaviest.put(entry.uid, -part.charged)
        else:
            self._heaviest.drop(entry.uid)
        first = self._heaviest.first()
        self.largest = None if first is None else (first, self._parts[first].bytes)

    def _count_users(self, entry: IndexEntry, sign: int) -> None:
        """Add the users of one common segment, or subtract them with a *sign* of -1."""
        for uid, size in entry.users.items():
            self._common[int(uid)] += sign * size
            if self._common[int(uid)] <= 0:
                del self._common[int(uid)]

    def _remove(self, marked: IndexEntry) -> None:
        """Write *marked*, the entry of a removed segment, and delete the segment. A failed call can be repeated. Raises OSError."""
        try:
            write_entry(self._archive, marked)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._delete(marked)
            write_entry(self._archive, marked)
        self._delete(marked)

    def _delete(self, entry: IndexEntry) -> None:
        """Delete the file of a segment, and its directories if they are empty. Raises OSError."""
        path = self._archive / entry.path
        path.unlink(missing_ok=True)
        for folder in list(path.parents)[:3]:
            try:
                folder.rmdir()
            except OSError:
                return
