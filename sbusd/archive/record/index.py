"""The index: one small JSON file for each segment, which describes the segment. Spec: sbus-record(5)."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from sbusd.archive.files import RecordError, make_folder, publish_file
from sbusd.archive.record.layout import INDEX, SegmentName, is_host, is_hour
from sbusd.archive.storage.location import ArchivePath, LocationError, is_remote
from sbusd.archive.storage.store import store_of

INDEX_VERSION = 1
"""Readers reject later versions, because they do not know what they would miss."""

MAX_ENTRY_BYTES = 64 << 10
"""Maximum length of an index entry. Most have less than a thousand bytes."""

_THREADS = 16
"""Number of remote entries that are read at the same time: each takes a request, which mostly waits."""

_WINDOW = 1024
"""Number of remote entries that are read ahead; bounds the memory."""

OTHERS = -1
"""The ``uid`` of segments with rows of users that are not listed. No user has it: system calls use it for "no change"."""

Removal = Literal["quota", "retention"]
"""Why a segment was removed: the quota was exceeded, or the retention time was over."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """The index entry of one segment.

    ``path`` is relative to the archive; times are nanoseconds since 1970, UTC; ``sha256`` and ``bytes`` describe the file.
    ``removed_at`` is set
    when the segment is removed. The entry is kept, so that a later computation of the hour knows that the hour is incomplete.
    """

    path: str
    date: str
    hour: int
    host: str
    rows: int
    bytes: int
    sha256: str
    min_ts: int
    max_ts: int
    first_seq: int
    last_seq: int
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Number of rows of each kind."""
    missing: int = 0
    """Number of rows that are known to be missing: the counts of ``tap_loss`` and ``gap``."""
    payloads_cut: int = 0
    payloads_left_out: int = 0
    uid: int | None = None
    """The user of all rows of a dedicated segment; :data:`OTHERS` for rows of users that are not listed; None for a common segment."""
    users: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each user's rows, before compression; a bounded number of users."""
    unnamed: int = 0
    """Bytes of the rows of all users that ``users`` does not list, before compression."""
    removed_at: int | None = None
    removed_because: Removal | None = None
    version: int = INDEX_VERSION

    @property
    def name(self) -> SegmentName:
        """The name of the segment."""
        return SegmentName.parse(self.path)

    @property
    def is_removed(self) -> bool:
        """Whether retention removed the segment."""
        return self.removed_at is not None

    def to_json(self) -> str:
        """Return the entry as one line of JSON, without a newline."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the entry for *text*. Unknown fields of the same version are ignored.

        Raises:
            ValueError: it is invalid, or of a later version; the text says what is wrong.
        """
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            raise ValueError("invalid index entry: not JSON") from None
        except RecursionError:
            raise ValueError("invalid index entry: nested too deeply") from None
        version = value.get("version") if isinstance(value, dict) else None
        if version is None:
            raise ValueError("invalid index entry: not a JSON object with a version")
        if version != INDEX_VERSION:
            raise ValueError(f"unsupported version {version!r}: this program reads version {INDEX_VERSION}. Upgrade it")
        known = {name: value[name] for name in _TYPES if name in value}
        for name, kinds in _TYPES.items():
            if name not in _OPTIONAL and name not in known:
                raise ValueError(f"invalid index entry: {name!r} is missing")
            if name in known and (not isinstance(known[name], kinds) or isinstance(known[name], bool)):
                raise ValueError(f"invalid index entry: {name!r} has the wrong type")
        if not all(uid.isdecimal() and type(size) is int for uid, size in known.get("users", {}).items()):
            raise ValueError("invalid index entry: 'users' has the wrong type")
        entry = cls(**known)
        if entry.name != SegmentName(entry.date, entry.hour, entry.host, entry.name.first_seq):
            raise ValueError(f"invalid index entry: path {entry.path!r} does not match date, hour and host")
        return entry


_NUMBERS = ("hour", "rows", "bytes", "min_ts", "max_ts", "first_seq", "last_seq", "missing", "payloads_cut", "payloads_left_out", "unnamed")

_OPTIONAL = frozenset({"kinds", "missing", "payloads_cut", "payloads_left_out", "uid", "users", "unnamed", "removed_at", "removed_because"})

_NONE = type(None)

_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("path", "date", "host", "sha256"), (str,)),
    **dict.fromkeys(_NUMBERS, (int,)),
    "kinds": (dict,),
    "uid": (int, _NONE),
    "users": (dict,),
    "removed_at": (int, _NONE),
    "removed_because": (str, _NONE),
}
"""The fields of an entry without the version, and their JSON types; booleans are not numbers."""


_OF_AN_HOUR = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d)\..*\.json", re.ASCII | re.DOTALL)
_ENTRY_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d\.(.+)\.(\d{20})\.json", re.ASCII)
_DATE_AND_HOUR = slice(0, 10), slice(11, 13)


def write_entry(archive: Path, entry: IndexEntry) -> None:
    """Write *entry* atomically to the index of *archive*, replacing an older one for the same segment; it is durable on return.

    Raises:
        OSError: it cannot be written.
    """
    target = archive / entry.name.index_path
    make_folder(target.parent)
    publish_file(target, (entry.to_json() + "\n").encode())


def read_entry(path: ArchivePath) -> IndexEntry:
    """Return the entry in the file or object *path*.

    Raises:
        RecordError: it cannot be read, or is invalid.
        StorageError: the object store cannot be used.
    """
    try:
        content = store_of(path.parent).read(path.name, MAX_ENTRY_BYTES + 1)
        if len(content) > MAX_ENTRY_BYTES:
            raise RecordError(path, f"invalid index entry: longer than {MAX_ENTRY_BYTES} bytes")
        return IndexEntry.from_json(content.decode("utf-8"))
    except OSError as error:
        raise RecordError(path, f"cannot read file: {error.strerror}") from None
    except ValueError as error:
        raise RecordError(path, str(error)) from None


def read_index(archive: ArchivePath, unreadable: Callable[[RecordError], None] | None = None) -> Iterator[IndexEntry]:
    """Yield all entries of *archive*, ordered by date, hour, host and ``seq``, including removed segments.

    With *unreadable*, entries that cannot be read are skipped, and *unreadable* is called with the error.

    Raises:
        RecordError: an entry cannot be read, or *archive* is not a directory.
        StorageError: the object store cannot be used.
    """
    return read_entries(archive, entry_names(archive), unreadable)


def read_entries(
    archive: ArchivePath, names: Sequence[str], unreadable: Callable[[RecordError], None] | None = None
) -> Iterator[IndexEntry]:
    """Yield the entries with the file *names*, in this order. Raises what :func:`read_index` raises."""
    for found in _read_all(archive, names):
        if isinstance(found, IndexEntry):
            yield found
        elif unreadable is None:
            raise found
        else:
            unreadable(found)


def _read_all(archive: ArchivePath, names: Sequence[str]) -> Iterator[IndexEntry | RecordError]:
    """Yield for each of *names* its entry, or why it cannot be read."""

    def read(name: str) -> IndexEntry | RecordError:
        try:
            return read_entry(archive / INDEX / name)
        except RecordError as error:
            return error
        except LocationError:
            return _invalid_name(archive, name)

    if isinstance(archive, Path):
        yield from map(read, names)
        return
    with ThreadPoolExecutor(_THREADS, "index") as threads:
        for start in range(0, len(names), _WINDOW):
            yield from threads.map(read, names[start : start + _WINDOW])


def index_names(archive: ArchivePath, unreadable: Callable[[RecordError], None] | None = None) -> list[SegmentName]:
    """Return the names of the segments in the index of *archive*, in the same order, without reading the entries.

    With *unreadable*, files with an invalid name are skipped, and *unreadable* is called with the error.

    Raises:
        RecordError: *archive* is not a directory, or a file name in its index is invalid.
    """
    found = []
    for name in entry_names(archive):
        segment = segment_of_entry(name)
        if segment is None or (is_remote(archive) and not is_host(segment.host)):
            error = _invalid_name(archive, name)
            if unreadable is None:
                raise error
            unreadable(error)
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


def _invalid_name(archive: ArchivePath, name: str) -> RecordError:
    """Return the error for the entry *name*, which can have any characters: it is only shown."""
    path = archive / INDEX / name if isinstance(archive, Path) else replace(archive, key=f"{archive.key}/{INDEX}/{name}".lstrip("/"))
    return RecordError(path, "invalid index entry: the file name does not name a segment")


def entry_names(archive: ArchivePath) -> list[str]:
    """Return the file names of the entries of *archive*, sorted. Raises RecordError, StorageError."""
    store = store_of(archive)
    try:
        return sorted(name for name in store.names(INDEX) if name.endswith(".json") and not name.startswith("."))
    except FileNotFoundError:
        if not store.is_folder():
            raise RecordError(archive, "not an archive: no such directory") from None
        return []
    except OSError as error:
        raise RecordError(archive / INDEX, f"cannot read directory: {error.strerror}") from None


def hour_of_entry(name: str) -> tuple[str, int] | None:
    """Return the day and hour of an index entry that cannot be read, by its file *name*; None if the name is invalid."""
    match = _OF_AN_HOUR.fullmatch(name)
    return (match[1], int(match[2])) if match and is_hour(match[1], int(match[2])) else None


def last_position(archive: Path, host: str) -> int:
    """Return the highest ``seq`` of *host* in the index of *archive*, 0 if there is none.

    Raises:
        RecordError: an entry is damaged, or the index cannot be read.
    """
    matches = _entries_of(archive, host)
    # Positions increase from file to file of the write-ahead log, so the newest file has the highest. It may have several segments: the
    # common one, named after the first position, those of other hours with the same name, and all dedicated ones, which sort after it.
    last, common = 0, ""
    for match in sorted(matches, key=lambda match: match[2], reverse=True):
        if common and match[2] != common:
            break
        entry = read_entry(archive / INDEX / match[0])
        last = max(last, entry.last_seq)
        common = common or (match[2] if entry.uid is None else "")
    return last


def entries_between(archive: Path, host: str, first: int, last: int) -> list[IndexEntry]:
    """Return the entries of *host* whose names have a number from *first* to *last*. Raises RecordError as :func:`last_position` does."""
    return [read_entry(archive / INDEX / match[0]) for match in _entries_of(archive, host) if first <= int(match[2]) <= last]


def _entries_of(archive: Path, host: str) -> list[re.Match[str]]:
    """Return the matches of ``_ENTRY_NAME`` for the entries of *host*. Raises RecordError."""
    folder = archive / INDEX
    try:
        return [match for name in os.listdir(folder) if (match := _ENTRY_NAME.fullmatch(name)) and match[1] == host]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(folder, f"cannot read directory: {error.strerror}") from None
