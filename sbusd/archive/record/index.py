"""The index: one small JSON file for each segment, which says what is in it without opening it. Spec: sbus-record(5)."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from sbusd.archive.errors import RecordError
from sbusd.archive.private_files import create_private, make_folder
from sbusd.archive.record.layout import INDEX, SegmentName, temporary

INDEX_VERSION = 1
"""A reader refuses entries of a later one: it would not know what it misses."""

MAX_ENTRY_BYTES = 64 << 10
"""Longest entry that is read: a real one has less than a thousand bytes."""

OTHERS = -1
"""The ``uid`` of segments with the rows of users that are too many to be named. No user has it: the kernel means no change by it."""

Removal = Literal["quota", "retention"]
"""Why a segment was removed: the disk's share was used up, or its time was over."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What one segment holds.

    ``path`` is relative to the archive; times are nanoseconds since 1970, UTC; ``sha256`` and ``bytes`` are the file's. ``removed_at``
    is set when the segment is gone: the entry stays, so that nobody takes the hour for complete who computes it anew.
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
    """Rows of each kind."""
    missing: int = 0
    """Rows that are known to be missing: the counts of ``tap_loss`` and ``gap``."""
    payloads_cut: int = 0
    payloads_left_out: int = 0
    uid: int | None = None
    """The user of all its rows, if they were put into a segment of their own; :data:`OTHERS` for rows of several users in one."""
    users: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each user's rows, before compression; of a bounded number of users."""
    unnamed: int = 0
    """Bytes of the rows of all users that ``users`` does not name, before compression."""
    removed_at: int | None = None
    removed_because: Removal | None = None
    version: int = INDEX_VERSION

    @property
    def name(self) -> SegmentName:
        """The segment's name."""
        return SegmentName.parse(self.path)

    @property
    def is_removed(self) -> bool:
        """Whether the segment has been removed on purpose."""
        return self.removed_at is not None

    def to_json(self) -> str:
        """Return the entry as one line of JSON, without a newline."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the entry that *text* is. Unknown fields of the same version are ignored.

        Raises:
            ValueError: it is none, or of a later version; the text says what is wrong.
        """
        try:
            value = json.loads(text)
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
"""Each field of an entry but its version, and what JSON may give there; true and false are no numbers."""


_OF_AN_HOUR = re.compile(r"(\d{4}-\d\d-\d\d)T([01]\d|2[0-3])\..*\.json", re.DOTALL)
_ENTRY_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d\d\.(.+)\.(\d{20})\.json")
_DATE_AND_HOUR = slice(0, 10), slice(11, 13)


def write_entry(archive: Path, entry: IndexEntry) -> None:
    """Put *entry* into the index of *archive*, in place of an older one for the same segment, at once or not at all; it is durable then.

    Raises:
        OSError: it cannot be written.
    """
    target = archive / entry.name.index_path
    make_folder(target.parent)
    publish_file(target, (entry.to_json() + "\n").encode())


def read_entry(path: Path) -> IndexEntry:
    """Return the entry in the file *path*.

    Raises:
        RecordError: it cannot be read, or is no entry.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_ENTRY_BYTES + 1)
        if len(content) > MAX_ENTRY_BYTES:
            raise RecordError(path, f"invalid index entry: longer than {MAX_ENTRY_BYTES} bytes")
        return IndexEntry.from_json(content.decode("utf-8"))
    except OSError as error:
        raise RecordError(path, f"cannot read file: {error.strerror}") from None
    except ValueError as error:
        raise RecordError(path, str(error)) from None


def read_index(archive: Path, unreadable: Callable[[RecordError], None] | None = None) -> Iterator[IndexEntry]:
    """Yield all entries of *archive*, in order of date, hour, host and ``seq``, those of removed segments too.

    With *unreadable* an entry that cannot be read is left out, and the error passed to that.

    Raises:
        RecordError: an entry cannot be read, or *archive* is no folder.
    """
    for name in _entry_names(archive):
        try:
            entry = read_entry(archive / INDEX / name)
        except RecordError as error:
            if unreadable is None:
                raise
            unreadable(error)
        else:
            yield entry


def index_names(archive: Path, unreadable: Callable[[RecordError], None] | None = None) -> list[SegmentName]:
    """Return the segments that the index of *archive* names, in the same order, without reading any entry.

    With *unreadable* a file that names none is left out, and the error passed to that.

    Raises:
        RecordError: *archive* is no folder, or a file in its index is none of an entry's.
    """
    found = []
    for name in _entry_names(archive):
        match = _ENTRY_NAME.fullmatch(name)
        if match is None:
            error = RecordError(archive / INDEX / name, "invalid index entry: the file name does not name a segment")
            if unreadable is None:
                raise error
            unreadable(error)
            continue
        date, hour = (name[part] for part in _DATE_AND_HOUR)
        found.append(SegmentName(date, int(hour), match[1], int(match[2])))
    return found


def _entry_names(archive: Path) -> list[str]:
    """Return the names of the entries' files, in order. Raises RecordError."""
    folder = archive / INDEX
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(".json") and not name.startswith("."))
    except FileNotFoundError:
        if not archive.is_dir():
            raise RecordError(archive, "not an archive: no such directory") from None
        return []
    except OSError as error:
        raise RecordError(folder, f"cannot read directory: {error.strerror}") from None


def hour_of_entry(name: str) -> tuple[str, int] | None:
    """Return day and hour that an index entry is about by the *name* of its file, for one that cannot be read; None if it names none."""
    match = _OF_AN_HOUR.fullmatch(name)
    try:
        return None if match is None else (datetime.date.fromisoformat(match[1]).isoformat(), int(match[2]))
    except ValueError:
        return None


def last_position(archive: Path, host: str) -> int:
    """Return the greatest ``seq`` that the index of *archive* has for *host*, 0 if it has none.

    Raises:
        RecordError: an entry is damaged, or the index cannot be read.
    """
    matches = _entries_of(archive, host)
    # Positions rise from write-ahead to write-ahead, so the youngest has the greatest. It may have made several segments: all that come
    # behind its common one, which has its name from the first position, and those of other hours with the same name.
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
    """Return the names of the entries' files of *host*, as ``_ENTRY_NAME`` matches them. Raises RecordError."""
    folder = archive / INDEX
    try:
        return [match for name in os.listdir(folder) if (match := _ENTRY_NAME.fullmatch(name)) and match[1] == host]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(folder, f"cannot read directory: {error.strerror}") from None


def publish_file(target: Path, content: bytes) -> None:
    """Write *content* to *target* so that a reader sees all of it or nothing, also after a power failure. Raises OSError."""
    draft = temporary(target)
    with create_private(draft) as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    publish_draft(draft, target)


def publish_draft(draft: Path, target: Path) -> None:
    """Give *draft*, whole and synced, its name *target*; the name is durable on return. Raises OSError."""
    draft.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in *folder* durable. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
