"""Decides what to compute for an hour: compares its manifest with the archive."""

from __future__ import annotations

import bisect
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from sbusd.archive.files import RecordError
from sbusd.archive.record.index import IndexEntry, hour_of_entry, read_index
from sbusd.archive.record.layout import HOUR_NS, INDEX
from sbusd.archive.record.segments import RecordReader
from sbusd.archive.tables.hours import SILENT_HOURS, Hour, Manifest
from sbusd.archive.tables.schema import CALL_SECONDS, CALLS, LINKS, TABLES
from sbusd.pipeline.progress import Progress
from sbusd.pipeline.verification import Verifier

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
    """The index of the archive, read once, by hour."""

    def __init__(self, archive: RecordReader, progress: Progress, verify: Verifier) -> None:
        """Read the index. *verify* compares segments with their checksums."""
        self._archive = archive
        self._verify = verify
        self._damage: dict[tuple[str, str], RecordError | None] = {}
        """The result for each segment that was verified, by path and checksum."""
        self._reported: set[str] = set()
        """Damaged segments with a warning: a segment can belong to two hours."""
        self._progress = progress
        self._hours: defaultdict[Hour, list[IndexEntry]] = defaultdict(list)
        self._unreadable: defaultdict[Hour, list[str]] = defaultdict(list)
        for entry in read_index(archive.root, self._note_unreadable):
            self._hours[Hour(entry.date, entry.hour)].append(entry)
        self._last_rows = LastRows(entry for entries in self._hours.values() for entry in entries)

    def _note_unreadable(self, error: RecordError) -> None:
        """Note an entry that is damaged or partly copied: skip it, and list it as missing in its hour."""
        self._progress.warn(f"skipped until it can be read: {error}")
        if (named := hour_of_entry(error.path.name)) is not None:
            self._unreadable[Hour(*named)].append(f"{INDEX}/{error.path.name}")

    def tasks(self, hours: Iterable[Hour], made: Mapping[Hour, Manifest], *, rebuild: bool = False) -> list[HourTask]:
        """Return the tasks for *hours*, as :meth:`task`; *made* has the manifests of computed hours. All segments are verified at once."""
        hours = list(hours)
        self._check(entry for hour in hours for entry in self._unverified(hour, made.get(hour)))
        return [task for hour in hours if (task := self.task(hour, made.get(hour), rebuild=rebuild)) is not None]

    def task(self, hour: Hour, made: Manifest | None, *, rebuild: bool = False) -> HourTask | None:
        """Return the task for *hour*, whose manifest is *made*; None if it is up to date.

        *rebuild* computes it even without changes. An hour is never computed from less than before.
        """
        self._check(self._unverified(hour, made))
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
            # Listed as missing, so that it is tried again, and readers can report it.
            return HourTask(manifest, ()) if made is None and (found.absent or found.removed) else None
        if made is None or rebuild or _names(made.segments) != _names(found.present):
            return HourTask(manifest, _ALL)
        if _names(made.following) != _names(following.present):
            return HourTask(manifest, (CALLS.name, LINKS.name))
        return HourTask(manifest, ()) if made.absent != manifest.absent else None

    def _kept(self, made: Manifest, present: list[IndexEntry], lost: list[str]) -> HourTask | None:
        """Return the task for an hour that cannot be recomputed: list the segments that arrived too late, and warn once."""
        late = tuple(sorted(_names(present).keys() - _names(made.segments).keys()))
        if late == made.left_out:
            return None
        self._progress.warn(
            f"kept {made.hour} unchanged: segments that it was made from are gone: {len(lost)}, the first is {lost[0]};"
            f" later segments left out: {len(late)}"
        )
        return HourTask(replace(made, left_out=late), ())

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
        if wanted:
            self._progress.step(f"verifying {len(wanted)} segments")
        while wanted:
            # The index can have two entries for one file, with different checksums.
            batch = {entry.path: entry for entry in wanted.values()}
            damaged = self._verify(list(batch.values()))
            for entry in batch.values():
                self._damage[_identity(entry)] = damaged.get(entry.path)
                del wanted[_identity(entry)]

    def _sorted_out(self, entries: Iterable[IndexEntry], known: Iterable[IndexEntry]) -> _Found:
        """Return which of *entries* can be read; those in *known* are not verified again."""
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
        found.gone += sorted(verified.keys() - _names(found.present).keys())
        return found

    def _is_readable(self, entry: IndexEntry, verified: dict[str, str]) -> bool:
        """Return whether the segment of *entry* exists and is complete."""
        if verified.get(entry.path) == entry.sha256:
            return self._archive.exists(entry)
        if (error := self._damage[_identity(entry)]) is None:
            return True
        if entry.path not in verified and entry.path not in self._reported:
            self._reported.add(entry.path)
            self._progress.warn(f"skipped until it is available: {error}")
        return False


class LastRows:
    """The last row of each host, as of any hour."""

    def __init__(self, entries: Iterable[IndexEntry]) -> None:
        by_host: defaultdict[str, dict[Hour, int]] = defaultdict(dict)
        for entry in entries:
            hours, hour = by_host[entry.host], Hour(entry.date, entry.hour)
            hours[hour] = max(entry.max_ts, hours.get(hour, 0))
        self._hosts = {host: sorted(hours.items()) for host, hours in by_host.items()}

    def silent_at(self, hour: Hour, present: Iterable[IndexEntry]) -> dict[str, int]:
        """Return how many hours each host had been silent at the last row of *present*, segments of *hour*, from 1 to
        :data:`SILENT_HOURS`."""
        newest = max((entry.max_ts for entry in present), default=0)
        found = {}
        for host, hours in sorted(self._hosts.items()):
            place = bisect.bisect_right(hours, hour, key=lambda item: item[0])
            silent = (newest - hours[place - 1][1]) // HOUR_NS if place else 0
            if 1 <= silent <= SILENT_HOURS:
                found[host] = silent
        return found


@dataclass(slots=True)
class _Found:
    """The state of an hour in the archive: entries to read, and paths of others."""

    present: list[IndexEntry]
    absent: list[str]
    removed: list[str]
    gone: list[str]
    """Segments that the hour was computed from, and that cannot be read anymore."""


def _identity(entry: IndexEntry) -> tuple[str, str]:
    """Return path and checksum of a segment."""
    return entry.path, entry.sha256


def _names(entries: Iterable[IndexEntry]) -> dict[str, str]:
    """Return checksums by path."""
    return {entry.path: entry.sha256 for entry in entries}
