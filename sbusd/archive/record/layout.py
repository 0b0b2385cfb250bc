"""The file names of an archive. Spec: sbus-record(5).

::

    ARCHIVE/
      date=2026-11-20/hour=15/host=alpha/00000000000000000001.parquet   a segment: rows of one hour and host
      index/2026-11-20T15.alpha.00000000000000000001.json               its index entry

The name of an incomplete file begins with a dot, so readers ignore it. A segment is named after the first ``seq`` of its write-ahead
file, so
writing it again gives the same file.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Self

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
