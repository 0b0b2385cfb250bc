"""Day files: the index entries of one day and host in one compressed file, so that the index stays short. Spec: sbus-record(5).

The owner of the entries merges them when the day is over; see :mod:`sbusd.archive.record.compaction`.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from sbusd.archive.files import RecordError
from sbusd.archive.record.entry import IndexEntry
from sbusd.archive.record.layout import INDEX, is_host, is_hour
from sbusd.archive.storage.store import FileStore

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
