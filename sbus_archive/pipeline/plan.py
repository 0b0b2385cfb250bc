"""Decides what to compute for an hour: compares its manifest with the archive."""

from __future__ import annotations

import bisect
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sbus_archive.pipeline.progress import Progress
from sbus_archive.pipeline.verification import Verifier
from sbus_archive.record.index import DayName, IndexListing, hour_of_entry, list_index, read_index, segment_of_entry
from sbus_archive.record.layout import HOUR_NS, INDEX, IndexEntry
from sbus_archive.record.segments import RecordReader
from sbus_archive.storage.files import RecordError
from sbus_archive.storage.location import ArchivePath
from sbus_archive.tables.hours import SILENT_HOURS, Hour, Manifest
from sbus_archive.tables.schema import CALL_SECONDS, CALLS, LINKS, TABLES

_ALL = tuple(table.name for table in TABLES)
_CALL_NS = CALL_SECONDS * 10**9


@dataclass(frozen=True, slots=True)
class HourTask:
    """One hour to compute: its ``tables``, from the segments of the new ``manifest``. Without tables, only the manifest is written."""

    manifest: Manifest
    tables: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Number of rows of the record to read."""
        return sum(entry.rows for entry in self.manifest.segments)


class ArchiveIndex:
    """The index of some hours of the archive, read once, by hour."""

    def __init__(
        self, archive: RecordReader, progress: Progress, verify: Verifier, hours: Iterable[Hour], listing: IndexListing | None = None
    ) -> None:
        """Read the index for *hours*. *verify* compares segments with their checksums; *listing* are the files, if they are known."""
        self._archive = archive
        self._verify = verify
        self._damage: dict[tuple[str, str], RecordError | None] = {}
        """The result for each segment that was verified, by path and checksum."""
        self._reported: set[str] = set()
        """Damaged segments with a warning: a segment can belong to two hours."""
        self._progress = progress
        self._hours: defaultdict[Hour, list[IndexEntry]] = defaultdict(list)
        self._unreadable: defaultdict[Hour, list[str]] = defaultdict(list)
        self._wanted = {each for hour in hours for each in (hour, hour.following)}
        dates = {hour.date for hour in self._wanted}

        def wanted(date: str, hour: int | None, _host: str) -> bool:
            return date in dates if hour is None else Hour(date, hour) in self._wanted

        listing = listing or list_index(archive.root)
        for entry in read_index(archive.root, self._note_unreadable, wanted=wanted, listing=listing):
            self._hours[Hour(entry.date, entry.hour)].append(entry)
        self._last_rows = LastRows(archive.root, listing)

    def _note_unreadable(self, error: RecordError) -> None:
        """Note a file of the index that is damaged or partly copied: skip it, and list it as missing in its hours."""
        self._progress.warn(f"skipped until it can be read: {error}")
        if (named := hour_of_entry(error.path.name)) is not None:
            self._unreadable[Hour(*named)].append(f"{INDEX}/{error.path.name}")
        elif (day := DayName.parse(error.path.name)) is not None:
            for hour in (hour for hour in self._wanted if hour.date == day.date):
                self._unreadable[hour].append(day.path)

    def tasks(self, hours: Iterable[Hour], made: Mapping[Hour, Manifest], *, rebuild: bool = False) -> list[HourTask]:
        """Return the tasks for *hours*, as :meth:`task`; *made* has the manifests of computed hours. All segments are verified at once."""
        hours = list(hours)
        self._check(entry for hour in hours for entry in self._unverified(hour, made.get(hour)))
        found = {hour: task for hour in hours if (task := self._planned(hour, made.get(hour), rebuild=rebuild)) is not None}
        # What was verified by an earlier run may have been damaged since, and would be read again.
        self._check(entry for hour, task in found.items() for entry in _known(task, made.get(hour)))
        tasks = []
        for hour, task in found.items():
            is_damaged = any(self._is_damaged(entry) for entry in _known(task, made.get(hour)))
            now = self._planned(hour, made.get(hour), rebuild=rebuild) if is_damaged else task
            if now is not None:
                tasks.append(now)
        return tasks

    def task(self, hour: Hour, made: Manifest | None, *, rebuild: bool = False) -> HourTask | None:
        """Return the task for *hour*, whose manifest is *made*; None if it is up to date.

        *rebuild* computes it even without changes. An hour is never computed from less than before.
        """
        return next(iter(self.tasks([hour], {} if made is None else {hour: made}, rebuild=rebuild)), None)

    def _planned(self, hour: Hour, made: Manifest | None, *, rebuild: bool) -> HourTask | None:
        """As :meth:`task`, with what is known about damaged segments."""
        found = self._sorted_out(self._hours.get(hour, []), made.segments if made else ())
        found.absent += self._unreadable.get(hour, [])
        following = self._sorted_out(self._following(hour), made.following if made else ())
        # The segment may contain replies to calls of this hour, and the next state of a link.
        following.absent += self._unreadable.get(hour.following, [])
        if made is not None and (lost := found.gone + following.gone):
            return self._kept(made, found.present, lost)
        manifest = Manifest(
            hour, time.time_ns(), tuple(found.present), tuple(following.present), (*found.absent, *following.absent), tuple(found.removed),
            silent=self._last_rows.silent_at(hour, found.present),
        )  # fmt: skip
        if not found.present:
            return _unread(replace(manifest, following=(), absent=tuple(found.absent)), made)
        if made is None or rebuild or _names(made.segments) != _names(found.present):
            return HourTask(manifest, _ALL)
        if _names(made.following) != _names(following.present):
            return HourTask(manifest, (CALLS.name, LINKS.name))
        return HourTask(manifest, ()) if made.absent != manifest.absent else None

    def _kept(self, made: Manifest, present: list[IndexEntry], lost: list[str]) -> HourTask | None:
        """Return the task for an hour that cannot be recomputed: list the segments that arrived too late, and warn once.

        Segments that are damaged are listed as absent, so that the hour is computed when they are repaired.
        """
        late = tuple(sorted(_names(present).keys() - _names(made.segments).keys()))
        known = (*made.segments, *made.following)
        damaged = tuple(entry.path for entry in known if self._is_damaged(entry))
        absent = (*(path for path in made.absent if path not in _names(known)), *damaged)
        if (late, absent) == (made.left_out, made.absent):
            return None
        self._progress.warn(
            f"kept {made.hour} unchanged: segments that it was made from are gone or damaged: {len(lost)}, the first is {lost[0]};"
            f" later segments left out: {len(late)}"
        )
        return HourTask(replace(made, left_out=late, absent=absent), ())

    def _is_damaged(self, entry: IndexEntry) -> bool:
        """Return whether the segment of *entry* was verified in this run, and cannot be used although it exists."""
        error = self._damage.get(_identity(entry))
        return error is not None and self._archive.exists(entry)

    def _following(self, hour: Hour) -> list[IndexEntry]:
        """Return the entries of the next hour that can have replies to calls of *hour*."""
        until = hour.following.start + _CALL_NS
        return [entry for entry in self._hours.get(hour.following, []) if entry.min_ts < until]

    def _unverified(self, hour: Hour, made: Manifest | None) -> Iterator[IndexEntry]:
        """Yield the entries whose segments must be verified before the task for *hour* is known."""
        for entries, known in (
            (self._hours.get(hour, []), made.segments if made else ()),
            (self._following(hour), made.following if made else ()),
        ):
            verified = _names(known)
            yield from (entry for entry in entries if not entry.is_removed and verified.get(entry.path) != entry.sha256)

    def _check(self, entries: Iterable[IndexEntry]) -> None:
        """Verify those of *entries* that were not verified yet."""
        wanted = {_identity(entry): entry for entry in entries if _identity(entry) not in self._damage}
        if not wanted:
            return
        self._progress.step(f"verifying {len(wanted)} segments")
        damaged = self._verify(list(wanted.values()))
        for identity, entry in wanted.items():
            self._damage[identity] = damaged.get(entry.path)

    def _sorted_out(self, entries: Iterable[IndexEntry], known: Iterable[IndexEntry]) -> _Found:
        """Return which of *entries* can be read; those in *known* are not verified again."""
        entries, known = list(entries), list(known)
        verified = _names(known)
        found = _Found([], [], [], [])
        digests: set[tuple[str, str]] = set()
        for entry in sorted(entries, key=lambda entry: entry.path):
            if entry.is_removed:
                found.removed.append(entry.path)
            elif self._is_readable(entry, verified):
                # A copied archive can contain the same rows of a host under two names; they are read once. A host that copies the segment
                # of another one does not hide it.
                if (entry.host, entry.sha256) not in digests:
                    digests.add((entry.host, entry.sha256))
                    found.present.append(entry)
            else:
                found.absent.append(entry.path)
        # The manifest describes a segment that is there, even if a listing of the index is stale, or its entry was lost.
        named = {entry.path for entry in entries}
        found.present += [
            entry for entry in known if entry.path not in named and self._archive.exists(entry) and not self._is_damaged(entry)
        ]
        found.present.sort(key=lambda entry: entry.path)
        found.gone += sorted(verified.keys() - _names(found.present).keys())
        return found

    def _is_readable(self, entry: IndexEntry, verified: dict[str, str]) -> bool:
        """Return whether the segment of *entry* exists and is complete."""
        is_known = verified.get(entry.path) == entry.sha256
        if is_known and _identity(entry) not in self._damage:
            return self._archive.exists(entry)
        if (error := self._damage[_identity(entry)]) is None:
            return True
        if (is_known or entry.path not in verified) and entry.path not in self._reported:
            self._reported.add(entry.path)
            self._progress.warn(f"skipped until it is available: {error}")
        return False


class LastRows:
    """The last row of each host, as of any hour; only what is needed for that is read from the index."""

    def __init__(self, archive: ArchivePath, listing: IndexListing) -> None:
        self._archive = archive
        self._listing = listing
        self._singles: defaultdict[DayName, list[str]] = defaultdict(list)
        for name in listing.names:
            if (segment := segment_of_entry(name)) is not None:
                self._singles[DayName(segment.date, segment.host)].append(name)
        self._rows: dict[DayName, dict[Hour, int]] = {}
        """The last row of each hour of a day and host, as far as it was read."""
        named: defaultdict[str, list[str]] = defaultdict(list)
        for day in sorted(self._singles.keys() | listing.days.keys()):
            named[day.host].append(day.date)
        self._dates = dict(named)

    def silent_at(self, hour: Hour, present: Iterable[IndexEntry]) -> dict[str, int]:
        """Return how many hours each host had been silent at the last row of *present*, segments of *hour*, from 1 to
        :data:`SILENT_HOURS`.

        Raises:
            RecordError: the index cannot be read. A file in it that is damaged is left out: it is reported where its hour is computed.
        """
        present = list(present)
        if not present:
            return {}
        newest = max(entry.max_ts for entry in present)
        recording = {entry.host for entry in present}
        found = {}
        for host in sorted(self._dates.keys() - recording):
            last = self._last_row(host, hour)
            silent = 0 if last is None else (newest - last) // HOUR_NS
            if 1 <= silent <= SILENT_HOURS:
                found[host] = silent
        return found

    def _last_row(self, host: str, hour: Hour) -> int | None:
        """Return the time of the last row of *host* until the end of *hour*, in nanoseconds; None if it was too long ago."""
        dates = self._dates[host]
        oldest = Hour.at(hour.start - (SILENT_HOURS + 24) * HOUR_NS).date
        for place in range(bisect.bisect_right(dates, hour.date) - 1, -1, -1):
            if dates[place] < oldest:
                return None
            hours = self._hours_of(DayName(dates[place], host))
            if there := [each for each in hours if each <= hour]:
                return hours[max(there)]
        return None

    def _hours_of(self, day: DayName) -> dict[Hour, int]:
        """Return the time of the last row of each hour of a day and host, which is read once."""
        if day not in self._rows:
            days = {day: self._listing.days[day]} if day in self._listing.days else {}
            listing = IndexListing(tuple(self._singles.get(day, ())), days)
            hours: dict[Hour, int] = {}
            for entry in read_index(self._archive, lambda _error: None, listing=listing):
                hour = Hour(entry.date, entry.hour)
                hours[hour] = max(entry.max_ts, hours.get(hour, 0))
            self._rows[day] = hours
        return self._rows[day]


@dataclass(slots=True)
class _Found:
    """The state of an hour in the archive: entries to read, and paths of others."""

    present: list[IndexEntry]
    absent: list[str]
    removed: list[str]
    gone: list[str]
    """Segments that the hour was computed from, and that cannot be read anymore."""


def _unread(manifest: Manifest, made: Manifest | None) -> HourTask | None:
    """Return the task for an hour of which nothing can be read and nothing was read before; None if *made* says the same.

    What is missing is listed, so that it is tried again, and readers can report it; no longer when nothing is missing anymore.
    """
    known = (made.absent, made.removed) if made is not None else ((), ())
    return HourTask(manifest, ()) if known != (manifest.absent, manifest.removed) else None


def _identity(entry: IndexEntry) -> tuple[str, str]:
    """Return path and checksum of a segment."""
    return entry.path, entry.sha256


def _known(task: HourTask, made: Manifest | None) -> tuple[IndexEntry, ...]:
    """Return the segments that *task* reads, or whose damage in *made* it clears; none if it does neither."""
    manifest = task.manifest
    known = (*manifest.segments, *manifest.following)
    if task.tables:
        return known
    return tuple(entry for entry in known if made is not None and entry.path in made.absent)


def _names(entries: Iterable[IndexEntry]) -> dict[str, str]:
    """Return checksums by path."""
    return {entry.path: entry.sha256 for entry in entries}
