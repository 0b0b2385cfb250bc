"""The offset of a stream: which segments of an archive it has read, and which come next.

Segments arrive in any order: those of another host may be copied days later. So an offset is a set, not a position: names for the two
newest days of each host, and a number for each earlier day, which detects segments that arrive even later. An offset also lists what its
own batch reads, so that a batch that Spark repeats has the same rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from sbus_archive.pipeline.errors import SourceError
from sbus_archive.record.index import DayName, IndexListing, Unreadable, find_entry, list_index, read_day, segment_names
from sbus_archive.record.layout import IndexEntry, SegmentName
from sbus_archive.record.segments import RecordReader
from sbus_archive.storage.files import RecordError
from sbus_archive.storage.location import ArchivePath
from sbus_archive.storage.store import store_of

DAYS_BY_NAME = 2
"""Number of newest days per host that are kept by name: a daily copy is in time, and offsets stay small."""

_LETTERS = 16
"""Length of the checksum of a name: 64 bits, so that a million segments have no collision."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows from ``first`` to ``last`` (exclusive) of the segment at ``path``, in the order of its file."""

    path: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Offset:
    """The progress of a stream over an archive."""

    seen: Mapping[str, frozenset[str]]
    """For each ``host/day`` of the newest days: segments that were read, or were removed before."""
    older: Mapping[str, int]
    """For each earlier ``host/day``: their number."""
    partly: Slice | None = None
    """The segment that was read in part, and the part, from 0."""
    batch: tuple[Slice, ...] = ()
    """What the batch that ends here reads."""
    removed: int = 0
    """Segments that were removed before they could be read."""

    @classmethod
    def begin(cls) -> Self:
        """Return the offset of a stream that has read nothing."""
        return cls({}, {})

    def to_json(self) -> dict[str, Any]:
        """Return the offset as JSON, as Spark stores it."""
        return {
            "seen": {day: sorted(names) for day, names in sorted(self.seen.items())},
            "older": dict(sorted(self.older.items())),
            "partly": None if self.partly is None else [self.partly.path, self.partly.first, self.partly.last],
            "batch": [[each.path, each.first, each.last] for each in self.batch],
            "removed": self.removed,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the offset of a checkpoint. Raises SourceError if it is not one of an archive."""
        try:
            return cls(
                {day: frozenset(names) for day, names in value["seen"].items()},
                dict(value["older"]),
                Slice(*value["partly"]) if value["partly"] else None,
                tuple(Slice(*each) for each in value["batch"]),
                int(value["removed"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError):
            raise SourceError("the checkpoint is not one of a stream over an archive. Use a separate checkpoint for this query") from None

    def unread(self, names: Iterable[SegmentName]) -> list[SegmentName]:
        """Return those of *names* that the stream has not read completely, including removed ones.

        Raises:
            SourceError: a day that is kept as a number has more segments than that.
        """
        found, days = [], Counter[str]()
        for name in names:
            day = _day(name)
            if day in self.older and day not in self.seen:
                days[day] += 1
            elif _mark(name) not in self.seen.get(day, ()):
                found.append(name)
        for day, number in sorted(days.items()):
            if (late := number - self.older[day]) > 0:
                host, date = day.split("/")
                raise SourceError(
                    f"{late} segments of host {host} for {date} arrived too late: the stream has finished that day. Use a new"
                    f" checkpoint, or read them with spark.read and date = '{date}'"
                )
        return found

    def has_finished(self, host: str, date: str, number: int) -> bool:
        """Return whether the stream has read all of the *number* segments of a day that have a name now."""
        day = f"{host}/{date}"
        return len(self.seen[day]) == number if day in self.seen else self.older.get(day) == number

    def advanced(self, batch: Iterable[Slice], done: Iterable[SegmentName], partly: Slice | None, removed: int) -> Self:
        """Return the offset after *batch*: the segments of *done* are finished, *removed* of them because they were removed."""
        seen = {day: set(names) for day, names in self.seen.items()}
        touched = set()
        for name in done:
            seen.setdefault(_day(name), set()).add(_mark(name))
            touched.add(_day(name))
        # A day that was read now is kept by name, because more of it may follow.
        kept = touched | _newest(seen)
        older = {**self.older, **{day: len(names) for day, names in seen.items() if day not in kept}}
        by_name = {day: frozenset(names) for day, names in seen.items() if day in kept}
        return replace(self, seen=by_name, older=older, partly=partly, batch=tuple(batch), removed=self.removed + removed)


def next_offset(start: Offset, unread: Iterable[IndexEntry], max_rows: int | None) -> Offset:
    """Return the offset at most *max_rows* rows after *start*, or *start* if there is nothing to read.

    *unread* are available and removed segments, in any order.
    """
    batch: list[Slice] = []
    done: list[SegmentName] = []
    partly, room, removed = start.partly, max_rows, 0
    # A segment that was read in part is finished first.
    begun = partly.path if partly is not None else ""
    for entry in sorted(unread, key=lambda entry: (entry.path != begun, entry.name)):
        if entry.is_removed:
            done.append(entry.name)
            removed += 1
            partly = None if entry.path == begun else partly
            continue
        if room == 0:
            break
        first = partly.last if partly is not None and partly.path == entry.path else 0
        last = entry.rows if room is None else min(entry.rows, first + room)
        batch.append(Slice(entry.path, first, last))
        room = None if room is None else room - (last - first)
        if last < entry.rows:
            partly = Slice(entry.path, 0, last)
            break
        partly = None
        done.append(entry.name)
    return start.advanced(batch, done, partly, removed) if batch or done else start


def _day(name: SegmentName) -> str:
    """Return ``host/day`` of *name*; a host name has no slash."""
    return f"{name.host}/{name.date}"


def _newest(days: Iterable[str]) -> set[str]:
    """Return the newest :data:`DAYS_BY_NAME` of each host's :func:`_day`."""
    of_host: dict[str, list[str]] = {}
    for day in sorted(days):
        of_host.setdefault(day.partition("/")[0], []).append(day)
    return {day for found in of_host.values() for day in found[-DAYS_BY_NAME:]}


def _mark(name: SegmentName) -> str:
    """Return the checksum of a segment's name."""
    return hashlib.sha256(name.path.encode()).hexdigest()[:_LETTERS]


@dataclass(frozen=True, slots=True)
class StreamTarget:
    """What an index contains at one time: the segments with an entry of their own, and the day files."""

    segments: frozenset[SegmentName]
    days: frozenset[DayName]

    def __contains__(self, name: SegmentName) -> bool:
        return name in self.segments or DayName(name.date, name.host) in self.days


class StreamIndex:
    """The index of the archive *root*. *unreadable* is called with the error of each file that is skipped for now; None raises it."""

    def __init__(self, root: ArchivePath, unreadable: Unreadable | None) -> None:
        self._root = root
        self._unreadable = unreadable
        self._numbers: dict[DayName, tuple[str, int]] = {}
        """The number of entries of each day file that was read, with the text that changes when it is replaced."""

    def target(self) -> StreamTarget:
        """Return what the index contains now. Raises RecordError."""
        listing = list_index(self._root)
        return StreamTarget(frozenset(segment_names(self._root, listing, self._unreadable)), frozenset(listing.days))

    def unread(self, offset: Offset, max_rows: int | None, target: StreamTarget | None) -> list[IndexEntry]:
        """Return segments that *offset* has not read, and that exist or were removed: of the oldest days, with at least *max_rows* rows.

        With *target*, only those that it contains.

        Raises:
            RecordError: a file of the index cannot be read.
            SourceError: a segment has arrived after the stream finished its day.
        """
        listing = list_index(self._root)
        singles: defaultdict[DayName, list[SegmentName]] = defaultdict(list)
        for name in segment_names(self._root, listing, self._unreadable):
            singles[DayName(name.date, name.host)].append(name)
        found: list[IndexEntry] = []
        rows = 0
        for days in _by_date(singles.keys() | listing.days.keys(), offset):
            for day in days:
                for entry in self._unread_of(day, singles.get(day, []), listing, offset):
                    if target is None or entry.name in target:
                        found.append(entry)
                        rows += 0 if entry.is_removed else entry.rows
            if max_rows is not None and rows >= max_rows:
                break
        return found

    def _unread_of(self, day: DayName, singles: list[SegmentName], listing: IndexListing, offset: Offset) -> Iterator[IndexEntry]:
        """Yield the entries of *day* that *offset* has not read. Raises RecordError, SourceError."""
        merged: Mapping[str, IndexEntry] = {}
        if (fingerprint := listing.days.get(day)) is not None:
            number = self._numbers.get(day)
            if not singles and number is not None and number[0] == fingerprint and offset.has_finished(day.host, day.date, number[1]):
                return
            try:
                merged = read_day(store_of(self._root), day)
            except RecordError as error:
                self._skip(error)
                return
            self._numbers[day] = fingerprint, len(merged)
        names = sorted({*singles, *(entry.name for entry in merged.values())})
        for name in offset.unread(names):
            entry = merged.get(name.path) or self._single(name)
            # A copy of an archive can contain an entry before its segment; the stream waits for the segment.
            if entry is not None and (entry.is_removed or RecordReader(self._root).exists(entry)):
                yield entry

    def _single(self, name: SegmentName) -> IndexEntry | None:
        """Return an entry with a file of its own; None if it is damaged and skipped for now. Raises RecordError."""
        try:
            return find_entry(self._root, name)
        except RecordError as error:
            self._skip(error)
            return None

    def _skip(self, error: RecordError) -> None:
        """Report *error*, or raise it."""
        if self._unreadable is None:
            raise error
        self._unreadable(error)


def _by_date(days: Collection[DayName], offset: Offset) -> Iterator[list[DayName]]:
    """Yield *days* in groups of one date, in order; first the date of the segment that was read in part, which is finished first."""
    by_date: defaultdict[str, list[DayName]] = defaultdict(list)
    for day in sorted(days):
        by_date[day.date].append(day)
    begun = SegmentName.parse(offset.partly.path).date if offset.partly is not None else ""
    for date in sorted(by_date, key=lambda date: (date != begun, date)):
        yield by_date[date]
