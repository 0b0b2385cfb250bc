"""The index: one entry for each segment, in a file of its own or in a day file. Spec: sbus-record(5).

The owner of the entries merges them when the day is over; see :mod:`sbus_archive.record.compaction`.
"""

from __future__ import annotations

import errno
import gzip
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from sbus_archive.record.layout import INDEX, MAX_ENTRY_BYTES, IndexEntry, SegmentName, is_host, is_hour
from sbus_archive.storage.files import RecordError, make_folder, publish_file
from sbus_archive.storage.location import ArchivePath, LocationError, is_remote
from sbus_archive.storage.store import FileStore, store_of

DAYS = f"{INDEX}/days"
"""The directory of day files."""

MAX_DAY_BYTES = 64 << 20
"""Maximum length of the entries of a day file, before compression: about a hundred thousand entries."""

_FILE_NAME = re.compile(r"(\d{4}-\d\d-\d\d)\.(.+)\.jsonl\.gz", re.ASCII)

_LEVEL = 6


@dataclass(frozen=True, slots=True, order=True)
class DayName:
    """The name of a day file: ``date`` is ``YYYY-MM-DD`` in UTC."""

    date: str
    host: str

    @classmethod
    def parse(cls, file: str) -> Self | None:
        """Return the name for *file*, without its directory; None if it is not the name of a day file."""
        match = _FILE_NAME.fullmatch(file)
        return cls(match[1], match[2]) if match and is_hour(match[1], 0) and is_host(match[2]) else None

    @property
    def file(self) -> str:
        """The name of the file in its directory."""
        return f"{self.date}.{self.host}.jsonl.gz"

    @property
    def path(self) -> str:
        """The path, relative to the archive."""
        return f"{DAYS}/{self.file}"


def list_days(store: FileStore) -> dict[DayName, str]:
    """Return the day files of the archive in *store*, each with a text that changes when the file is replaced.

    Other files in the directory are ignored: they are incomplete. Raises RecordError, StorageError.
    """
    try:
        found = store.fingerprints(DAYS)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RecordError(store.path(DAYS), f"cannot read directory: {error.strerror}") from None
    return {day: text for name, text in found.items() if (day := DayName.parse(name)) is not None}


def encode_day(entries: Iterable[IndexEntry]) -> bytes:
    """Return the content of a day file with *entries*, which have different paths. The same entries give the same bytes."""
    lines = "".join(f"{entry.to_json()}\n" for entry in sorted(entries, key=lambda entry: entry.path))
    return gzip.compress(lines.encode(), _LEVEL, mtime=0)


def read_day(store: FileStore, day: DayName) -> Mapping[str, IndexEntry]:
    """Return the entries of the day file *day* by the paths of their segments; none if it does not exist.

    Raises:
        RecordError: it cannot be read, or is damaged.
        StorageError: the object store cannot be used.
    """
    path = store.path(day.path)
    try:
        content = _decompress(store, day)
        entries = [IndexEntry.from_json(line) for line in content.decode().splitlines()]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RecordError(path, f"cannot read file: {error.strerror}") from None
    except (ValueError, zlib.error) as error:
        raise RecordError(path, f"damaged day file: {error}") from None
    found = {entry.path: entry for entry in entries}
    if any((entry.date, entry.host) != (day.date, day.host) for entry in entries) or len(found) != len(entries):
        raise RecordError(path, "damaged day file: it has an entry twice, or one of another day or host")
    return found


def _decompress(store: FileStore, day: DayName) -> bytes:
    """Return the lines of a day file. Raises OSError, ValueError, zlib.error."""
    engine = zlib.decompressobj(zlib.MAX_WBITS | 16)
    content = engine.decompress(store.read(day.path, MAX_DAY_BYTES), MAX_DAY_BYTES + 1)
    if len(content) > MAX_DAY_BYTES:
        raise ValueError(f"longer than {MAX_DAY_BYTES} bytes")
    if not engine.eof or engine.unused_data:
        raise ValueError("not one complete gzip file")
    return content


_THREADS = 16
"""Number of remote entries that are read at the same time: each takes a request, which mostly waits."""

_WINDOW = 1024
"""Number of remote entries that are read ahead; bounds the memory."""

Wanted = Callable[[str, int | None, str], bool]
"""Returns whether entries are wanted, by date, hour and host; the hour is None for a file with entries of a whole day."""

Unreadable = Callable[[RecordError], None]
"""Is called with the error of each file of the index that cannot be read and is skipped."""

_OF_AN_HOUR = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d)\..*\.json", re.ASCII | re.DOTALL)
_ENTRY_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d\.(.+)\.(\d{20})\.json", re.ASCII)
_DATE_AND_HOUR = slice(0, 10), slice(11, 13)


class MissingEntryError(RecordError):
    """The index has no entry with this name: it was deleted, or merged into a day file in the meantime."""


@dataclass(frozen=True, slots=True)
class IndexListing:
    """The files of an index: names of single entries, sorted, and day files with texts that change when the file is replaced."""

    names: tuple[str, ...]
    days: Mapping[DayName, str]


def list_index(archive: ArchivePath) -> IndexListing:
    """Return the files of the index of *archive*, without reading them.

    Raises:
        RecordError: *archive* is not a directory, or cannot be read.
        StorageError: the object store cannot be used.
    """
    # In this order: an entry that is merged in the meantime is in its day file before its own file is deleted.
    store = store_of(archive)
    names = single_names(store)
    return IndexListing(tuple(names), list_days(store))


def write_entry(archive: Path, entry: IndexEntry) -> None:
    """Write *entry* atomically to the index of *archive*, in place of an older one for the same segment; it is durable on return.

    Raises:
        OSError: it cannot be written.
    """
    target = archive / entry.name.index_path
    make_folder(target.parent)
    publish_file(target, (entry.to_json() + "\n").encode())


def read_entry(path: ArchivePath) -> IndexEntry:
    """Return the entry in the file or object *path*.

    Raises:
        MissingEntryError: the file does not exist.
        RecordError: it cannot be read, or is invalid.
        StorageError: the object store cannot be used.
    """
    return _read(store_of(path.parent), path.name)


def _read(store: FileStore, name: str) -> IndexEntry:
    """Return the entry in the file *name* of *store*. Raises what :func:`read_entry` raises."""
    path = store.path(name)
    try:
        content = store.read(name, MAX_ENTRY_BYTES + 1)
        if len(content) > MAX_ENTRY_BYTES:
            raise RecordError(path, f"invalid index entry: longer than {MAX_ENTRY_BYTES} bytes")
        return IndexEntry.from_json(content.decode("utf-8"))
    except FileNotFoundError as error:
        raise MissingEntryError(path, f"cannot read file: {error.strerror or os.strerror(errno.ENOENT)}") from None
    except OSError as error:
        raise RecordError(path, f"cannot read file: {error.strerror}") from None
    except ValueError as error:
        raise RecordError(path, str(error)) from None


def find_entry(archive: ArchivePath, name: SegmentName) -> IndexEntry:
    """Return the entry of the segment *name*, which may be in a day file.

    Raises:
        MissingEntryError: there is none.
        RecordError: it cannot be read, or is invalid.
        StorageError: the object store cannot be used.
    """
    return find_in(store_of(archive), name)


def find_in(store: FileStore, name: SegmentName) -> IndexEntry:
    """As :func:`find_entry`, for the archive in *store*."""
    try:
        return _read(store, name.index_path)
    except MissingEntryError:
        if (found := read_day(store, DayName(name.date, name.host)).get(name.path)) is None:
            raise
        return found


def read_index(
    archive: ArchivePath,
    unreadable: Unreadable | None = None,
    *,
    wanted: Wanted = lambda _date, _hour, _host: True,
    listing: IndexListing | None = None,
) -> Iterator[IndexEntry]:
    """Yield the *wanted* entries of *archive*, ordered by date, hour, host and ``seq``, including removed segments; each segment once.

    *listing* are the files of the index, if they are known. With *unreadable*, files that cannot be read are skipped.

    Raises:
        RecordError: a file cannot be read, or *archive* is not a directory.
        StorageError: the object store cannot be used.
    """
    listing = listing or list_index(archive)
    singles: defaultdict[str, list[str]] = defaultdict(list)
    for name in listing.names:
        segment = segment_of_entry(name)
        if segment is None or wanted(segment.date, segment.hour, segment.host):
            singles[segment.date if segment else ""].append(name)
    days: defaultdict[str, list[DayName]] = defaultdict(list)
    for day in listing.days:
        if wanted(day.date, None, day.host):
            days[day.date].append(day)
    # Files without a valid name come last.
    for date in sorted(singles.keys() | days.keys(), key=lambda date: (not date, date)):
        found = _entries_of(store_of(archive), singles[date], days[date], _raise if unreadable is None else unreadable)
        yield from (entry for entry in found if wanted(entry.date, entry.hour, entry.host))


def _entries_of(store: FileStore, names: list[str], days: Iterable[DayName], unreadable: Unreadable) -> list[IndexEntry]:
    """Return the entries of the day files *days* and of the files *names*, in order."""
    found: dict[str, IndexEntry] = {}
    for day in days:
        try:
            found |= read_day(store, day)
        except RecordError as error:
            unreadable(error)
    for _, entry in read_files(store, names, unreadable):
        found[entry.path] = newer(found.get(entry.path), entry)
    return sorted(found.values(), key=lambda entry: entry.name)


def newer(merged: IndexEntry | None, single: IndexEntry) -> IndexEntry:
    """Return the one that holds of two entries of a segment, that of a day file and that of its own file, which is written later.

    A removed segment does not come back: the mark of a removal holds in each case.
    """
    return merged if merged is not None and merged.is_removed else single


def read_files(store: FileStore, names: Iterable[str], unreadable: Unreadable) -> Iterator[tuple[str, IndexEntry]]:
    """Yield the entries in the files *names* of the index, each with its name; also of entries that were merged in the meantime.

    *unreadable* is called for a file that cannot be read, and for one that describes another segment than its name.

    Raises:
        RecordError: a day file cannot be read.
        StorageError: the object store cannot be used.
    """
    names = list(names)
    merged: dict[DayName, Mapping[str, IndexEntry]] = {}
    for name, read in zip(names, _read_all(store, names), strict=True):
        found = read
        if isinstance(read, MissingEntryError) and (segment := segment_of_entry(name)) is not None:
            day = DayName(segment.date, segment.host)
            if day not in merged:
                merged[day] = read_day(store, day)
            found = merged[day].get(segment.path, read)
        if isinstance(found, RecordError):
            unreadable(found)
        elif segment_of_entry(name) != found.name:
            # It could replace the entry of that segment, which is another host's, perhaps.
            unreadable(RecordError(store.path(f"{INDEX}/{name}"), f"invalid index entry: it describes another segment, {found.path}"))
        else:
            yield name, found


def read_entries(archive: ArchivePath, names: Iterable[SegmentName], unreadable: Unreadable | None = None) -> list[IndexEntry]:
    """Return the entries of the segments *names*, in order, and those of a day file together. Raises what :func:`read_index` raises."""
    names = set(names)
    hours = {(name.date, name.hour, name.host) for name in names}
    days = {(name.date, name.host) for name in names}
    listing = list_index(archive)

    def wanted(date: str, hour: int | None, host: str) -> bool:
        return (date, host) in days if hour is None else (date, hour, host) in hours

    found = [entry for entry in read_index(archive, unreadable, wanted=wanted, listing=listing) if entry.name in names]
    for name in sorted(names - {entry.name for entry in found}):
        error = MissingEntryError(store_of(archive).path(name.index_path), "no such entry in the index")
        if unreadable is None:
            raise error
        unreadable(error)
    return found


def _raise(error: RecordError) -> None:
    """Raise *error*."""
    raise error


def _read_all(store: FileStore, names: list[str]) -> Iterator[IndexEntry | RecordError]:
    """Yield for each of *names* its entry, or why it cannot be read."""

    def read(name: str) -> IndexEntry | RecordError:
        try:
            return _read(store, f"{INDEX}/{name}")
        except RecordError as error:
            return error
        except LocationError:
            return _invalid_name(store, name)

    if isinstance(store.path(""), Path):
        yield from map(read, names)
        return
    with ThreadPoolExecutor(_THREADS, "index") as threads:
        for start in range(0, len(names), _WINDOW):
            yield from threads.map(read, names[start : start + _WINDOW])


def segment_names(archive: ArchivePath, listing: IndexListing, unreadable: Unreadable | None = None) -> list[SegmentName]:
    """Return the names of the segments that have an entry of their own in *listing*, in order, without reading the entries.

    With *unreadable*, files with an invalid name are skipped, and *unreadable* is called with the error.

    Raises:
        RecordError: a file name in the index of *archive* is invalid.
    """
    found = []
    for name in listing.names:
        segment = segment_of_entry(name)
        if segment is None or (is_remote(archive) and not is_host(segment.host)):
            (unreadable or _raise)(_invalid_name(store_of(archive), name))
            continue
        found.append(segment)
    return found


def segment_of_entry(name: str) -> SegmentName | None:
    """Return the name of the segment whose index entry has the file *name*; None if the name is invalid."""
    match = _ENTRY_NAME.fullmatch(name)
    if match is None:
        return None
    date, hour = (name[part] for part in _DATE_AND_HOUR)
    return SegmentName(date, int(hour), match[1], int(match[2])) if is_hour(date, int(hour)) else None


def _invalid_name(store: FileStore, name: str) -> RecordError:
    """Return the error for the entry *name*, which can have any characters: it is only shown."""
    root = store.path("")
    path = root / INDEX / name if isinstance(root, Path) else replace(root, key=f"{root.key}/{INDEX}/{name}".lstrip("/"))
    return RecordError(path, "invalid index entry: the file name does not name a segment")


def single_names(store: FileStore) -> list[str]:
    """Return the file names of the entries with a file of their own, sorted. Raises RecordError, StorageError."""
    try:
        return sorted(name for name in store.names(INDEX) if name.endswith(".json") and not name.startswith("."))
    except FileNotFoundError:
        if not store.is_folder():
            raise RecordError(store.path(""), "not an archive: no such directory") from None
        return []
    except OSError as error:
        raise RecordError(store.path(INDEX), f"cannot read directory: {error.strerror}") from None


def hour_of_entry(name: str) -> tuple[str, int] | None:
    """Return the day and hour of an index entry that cannot be read, by its file *name*; None if the name is invalid."""
    match = _OF_AN_HOUR.fullmatch(name)
    return (match[1], int(match[2])) if match and is_hour(match[1], int(match[2])) else None


def entries_between(archive: Path, host: str, first: int, last: int) -> list[IndexEntry]:
    """Return the entries of *host* with files of their own whose names have a number from *first* to *last*, without damaged ones.

    Raises:
        RecordError: the index cannot be read.
    """
    folder = archive / INDEX
    try:
        matches = [match for name in os.listdir(folder) if (match := _ENTRY_NAME.fullmatch(name)) and match[1] == host]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(folder, f"cannot read directory: {error.strerror}") from None
    names = [match[0] for match in matches if first <= int(match[2]) <= last]
    return [entry for _, entry in read_files(store_of(archive), names, lambda _error: None)]
