"""Which segments of an archive a stream has read: its offset. No I/O.

Segments arrive in any order: those of another host are copied days later. So an offset is no position but the set of what was seen: by
name for the two newest days of each host, and for each day before as a number, by which a segment that is later still is noticed.
An offset also names what its own batch reads, so that a batch that Spark repeats has the same rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from sbusd.archive.record.index import IndexEntry
from sbusd.archive.record.layout import SegmentName
from sbusd.pipeline.errors import SourceError

DAYS_BY_NAME = 2
"""Days of a host, its newest among them, that are remembered name by name: a copy once a day is in time, and an offset stays small."""

_LETTERS = 16
"""Of the checksum that stands for a name: 64 bits, so that no two of a million segments have the same."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``first`` to ``last``, not included, of the segment at ``path``, in the order of its file."""

    path: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a stream over an archive is."""

    seen: Mapping[str, frozenset[str]]
    """For each ``host/day`` of the newest the segments that were read, or will never be, for they have been removed."""
    older: Mapping[str, int]
    """For each ``host/day`` before those their number."""
    partly: Slice | None = None
    """The segment that is not read to its end, and what has been read of it: from 0."""
    batch: tuple[Slice, ...] = ()
    """What the batch that ends here reads."""
    removed: int = 0
    """Segments that were removed before they could be read."""

    @classmethod
    def begin(cls) -> Self:
        """Return the offset of a stream that has read nothing."""
        return cls({}, {})

    def to_json(self) -> dict[str, Any]:
        """Return it as Spark keeps it."""
        return {
            "seen": {day: sorted(names) for day, names in sorted(self.seen.items())},
            "older": dict(sorted(self.older.items())),
            "partly": None if self.partly is None else [self.partly.path, self.partly.first, self.partly.last],
            "batch": [[each.path, each.first, each.last] for each in self.batch],
            "removed": self.removed,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the offset that a checkpoint has. Raises SourceError if that is none of an archive."""
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
        """Return those of *names* that the stream has not read to their end, removed ones among them.

        Raises:
            SourceError: there are more of a day than were seen while it was remembered by name.
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

    def advanced(self, batch: Iterable[Slice], done: Iterable[SegmentName], partly: Slice | None, removed: int) -> Self:
        """Return the offset behind *batch*, with which the segments of *done* have been read and *removed* of them never will be."""
        seen = {day: set(names) for day, names in self.seen.items()}
        touched = set()
        for name in done:
            seen.setdefault(_day(name), set()).add(_mark(name))
            touched.add(_day(name))
        # A day that was read just now stays, however old: there may be more of it.
        kept = touched | _newest(seen)
        older = {**self.older, **{day: len(names) for day, names in seen.items() if day not in kept}}
        by_name = {day: frozenset(names) for day, names in seen.items() if day in kept}
        return replace(self, seen=by_name, older=older, partly=partly, batch=tuple(batch), removed=self.removed + removed)


def next_offset(start: Offset, unread: Iterable[IndexEntry], max_rows: int | None) -> Offset:
    """Return the offset that is at most *max_rows* rows behind *start*, *start* itself if there is nothing to read.

    *unread* are segments that can be read now, and removed ones, in any order.
    """
    batch: list[Slice] = []
    done: list[SegmentName] = []
    partly, room, removed = start.partly, max_rows, 0
    # What was begun is ended first.
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
    """Return the day of a host that *name* is of; a host has no slash in it."""
    return f"{name.host}/{name.date}"


def _newest(days: Iterable[str]) -> set[str]:
    """Return the newest :data:`DAYS_BY_NAME` of each host's :func:`_day`."""
    of_host: dict[str, list[str]] = {}
    for day in sorted(days):
        of_host.setdefault(day.partition("/")[0], []).append(day)
    return {day for found in of_host.values() for day in found[-DAYS_BY_NAME:]}


def _mark(name: SegmentName) -> str:
    """Return what stands for a segment."""
    return hashlib.sha256(name.path.encode()).hexdigest()[:_LETTERS]
