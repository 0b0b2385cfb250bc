"""Finds the segments that a stream has not read: day by day, until there are enough, so that a long index is not read in each batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from sbusd.archive.files import RecordError
from sbusd.archive.record.index import DayName, IndexListing, Unreadable, find_entry, list_index, read_day, segment_names
from sbusd.archive.record.layout import IndexEntry, SegmentName
from sbusd.archive.record.segments import RecordReader
from sbusd.archive.storage.location import ArchivePath
from sbusd.archive.storage.store import store_of
from sbusd.pipeline.source.archive_offset import Offset


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
