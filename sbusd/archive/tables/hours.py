"""Hours, and what is known of each that has been made: the manifest. Spec: sbus-pipeline(8)."""

from __future__ import annotations

import dataclasses
import datetime
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sbusd.archive.errors import TablesError
from sbusd.archive.record.index import IndexEntry
from sbusd.archive.record.layout import HOUR_NS
from sbusd.archive.tables.schema import VERSION

MANIFESTS = "hours"
"""The folder of the manifests."""


@dataclass(frozen=True, slots=True, order=True)
class Hour:
    """One hour of the record, UTC: ``date`` is YYYY-MM-DD, ``hour`` 0 to 23."""

    date: str
    hour: int

    @classmethod
    def at(cls, ts: int) -> Self:
        """Return the hour of *ts*, nanoseconds since 1970."""
        moment = datetime.datetime.fromtimestamp(ts // 10**9, datetime.UTC)
        return cls(moment.strftime("%Y-%m-%d"), moment.hour)

    @property
    def start(self) -> int:
        """When it begins, in nanoseconds since 1970."""
        midnight = datetime.datetime.fromisoformat(self.date).replace(tzinfo=datetime.UTC)
        return int(midnight.timestamp()) * 10**9 + self.hour * HOUR_NS

    @property
    def following(self) -> Hour:
        """The hour behind it."""
        return Hour.at(self.start + HOUR_NS)

    @property
    def preceding(self) -> Hour:
        """The hour before it."""
        return Hour.at(self.start - HOUR_NS)

    @property
    def folder(self) -> Path:
        """The folder of its rows in each table."""
        return Path(f"date={self.date}", f"hour={self.hour:02}")

    def __str__(self) -> str:
        """Return it as manifests are named."""
        return f"{self.date}T{self.hour:02}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the rows of one hour were made from.

    ``segments`` are those of the hour; ``following`` those of the next hour that were searched for replies. ``absent`` are segments
    that the index names and that were not there, or damaged, and index entries that could not be read: the hour is made again when they
    are. ``removed`` are those that retention had removed before the hour was ever made. ``left_out`` came when the hour could not be
    made again, because retention had removed what it was made from. ``silent`` are hosts whose last row, when the hour was made, was so
    many whole hours older than the hour's last.
    """

    hour: Hour
    made: int
    """When, in nanoseconds since 1970."""
    segments: tuple[IndexEntry, ...]
    following: tuple[IndexEntry, ...] = ()
    absent: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    silent: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"version": VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the manifest that *value* is. Raises ValueError if it is none of this version."""
        if value.get("version") != VERSION:
            raise ValueError(f"unsupported version {value.get('version')!r}: this program has {VERSION}. Run sbus-pipeline --rebuild")
        try:
            return cls(
                hour=Hour(**value["hour"]),
                made=value["made"],
                segments=tuple(IndexEntry(**entry) for entry in value["segments"]),
                following=tuple(IndexEntry(**entry) for entry in value["following"]),
                absent=tuple(value["absent"]),
                removed=tuple(value["removed"]),
                left_out=tuple(value["left_out"]),
                silent={str(host): int(hours) for host, hours in value["silent"].items()},
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"invalid manifest: {error}") from None


def manifest_path(root: Path, hour: Hour) -> Path:
    """Return where the manifest of *hour* is under the tables' folder *root*."""
    return root / MANIFESTS / f"{hour}.json"


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in the file *path*.

    Raises:
        TablesError: it cannot be read, or is none of this version.
    """
    try:
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict):
            raise TablesError(path, "invalid manifest: not a JSON object")
        return Manifest.from_json(value)
    except OSError as error:
        raise TablesError(path, f"cannot read file: {error.strerror}") from None
    except ValueError as error:
        raise TablesError(path, f"{error}") from None


def read_manifests(root: Path) -> dict[Hour, Manifest]:
    """Return the manifests of all hours that have been made, in order. Raises what :func:`read_manifest` does."""
    found = (read_manifest(path) for path in sorted((root / MANIFESTS).glob("[!.]*.json")))
    return {manifest.hour: manifest for manifest in found}
