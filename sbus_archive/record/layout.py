"""The file names of an archive, and the entries of its index. Spec: sbus-record(5).

::

    ARCHIVE/
      date=2026-11-20/hour=15/host=alpha/00000000000000000001.parquet   a segment: rows of one hour and host
      index/2026-11-20T15.alpha.00000000000000000001.json               its index entry

The name of an incomplete file begins with a dot, so readers ignore it. A segment is named after the first ``seq`` of its write-ahead
file, so writing it again gives the same file.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal, Self

HOUR_NS = 3_600 * 10**9
"""Nanoseconds of an hour."""

INDEX = "index"
"""The directory of the index entries."""

SUFFIX = ".parquet"

MAX_HOST_CHARACTERS = 64
"""HOST_NAME_MAX of Linux."""

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_FOLDER = re.compile(r"date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/host=([^/]+)/(\d{20})\.parquet", re.ASCII)

_YEARS = range(1970, 9001)
"""Years of a record: Python can compute the hours before and after each of their hours."""


def is_host(name: str) -> bool:
    """Return whether *name* is valid as host name in an archive: hostname(7) and ``_``, so file names need no escapes."""
    return len(name) <= MAX_HOST_CHARACTERS and _HOST.fullmatch(name) is not None


def is_hour(date: str, hour: int) -> bool:
    """Return whether *date* is a day from 1970 to 9000 in the form ``YYYY-MM-DD``, and *hour* one from 0 to 23."""
    try:
        day = datetime.date.fromisoformat(date)
    except ValueError:
        return False
    return day.isoformat() == date and day.year in _YEARS and hour in range(24)


def hour_of(ts: int) -> int:
    """Return the start of the hour of *ts*; both are nanoseconds since 1970, UTC."""
    return ts - ts % HOUR_NS


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The name of a segment: day (``YYYY-MM-DD``) and hour in UTC, host, and first ``seq`` of its write-ahead file."""

    date: str
    hour: int
    host: str
    first_seq: int

    @classmethod
    def at(cls, ts: int, host: str, first_seq: int) -> Self:
        """Return the name of the segment of *host* for the hour of *ts*, nanoseconds since 1970."""
        moment = datetime.datetime.fromtimestamp(ts // 10**9, datetime.UTC)
        return cls(moment.strftime("%Y-%m-%d"), moment.hour, host, first_seq)

    @classmethod
    def parse(cls, path: str) -> Self:
        """Return the name for *path*, relative to the archive. Raises ValueError if it is not the path of a segment."""
        match = _FOLDER.fullmatch(path)
        if match is None or not is_hour(match[1], int(match[2])) or not is_host(match[3]):
            raise ValueError(f"invalid segment path {path!r}")
        return cls(match[1], int(match[2]), match[3], int(match[4]))

    @property
    def start_ns(self) -> int:
        """The start of the hour, in nanoseconds since 1970."""
        day = datetime.datetime.fromisoformat(self.date).replace(tzinfo=datetime.UTC)
        return (int(day.timestamp()) + self.hour * 3_600) * 10**9

    @property
    def folder(self) -> PurePosixPath:
        """The directory, relative to the archive."""
        return PurePosixPath(f"date={self.date}", f"hour={self.hour:02}", f"host={self.host}")

    @property
    def path(self) -> str:
        """The path of the segment, relative to the archive."""
        return f"{self.folder}/{self.first_seq:020}{SUFFIX}"

    @property
    def index_name(self) -> str:
        """The name of the file of its index entry."""
        return f"{self.date}T{self.hour:02}.{self.host}.{self.first_seq:020}.json"

    @property
    def index_path(self) -> str:
        """The path of its index entry, relative to the archive."""
        return f"{INDEX}/{self.index_name}"


INDEX_VERSION = 1
"""Readers reject later versions, because they would miss rows without notice."""

MAX_ENTRY_BYTES = 64 << 10
"""Maximum length of an index entry. Most have less than a thousand bytes."""

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
    """The user that is charged for all rows of a dedicated segment; :data:`OTHERS` for rows of users that are not listed; None for a
    common segment."""
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
        # Retention and the search for replies use them; an entry has no checksum of its own.
        if not (hour_of(entry.min_ts) == hour_of(entry.max_ts) == entry.name.start_ns and entry.min_ts <= entry.max_ts):
            raise ValueError("invalid index entry: 'min_ts' and 'max_ts' are not in its hour")
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
