"""Hours of the tables, and their manifests, which say what each hour was computed from. Spec: sbus-pipeline(8)."""

from __future__ import annotations

import dataclasses
import datetime
from dataclasses import dataclass, field
from typing import Any, Self

from sbus_archive.record.layout import HOUR_NS, IndexEntry
from sbus_archive.tables.schema import VERSION

MANIFESTS = "hours"
"""The table of the manifests."""

SILENT_HOURS = 7 * 24
"""After this number of hours without rows, a host counts as decommissioned: nothing of it is missing."""


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
        """The start, in nanoseconds since 1970."""
        midnight = datetime.datetime.fromisoformat(self.date).replace(tzinfo=datetime.UTC)
        return int(midnight.timestamp()) * 10**9 + self.hour * HOUR_NS

    @property
    def following(self) -> Hour:
        """The next hour."""
        return Hour.at(self.start + HOUR_NS)

    @property
    def preceding(self) -> Hour:
        """The previous hour."""
        return Hour.at(self.start - HOUR_NS)

    def __str__(self) -> str:
        """Return the hour as YYYY-MM-DDTHH."""
        return f"{self.date}T{self.hour:02}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the rows of one hour were computed from.

    ``segments`` are those of the hour; ``following`` those of the next hour that were searched for replies. ``absent`` are segments in the
    index that are missing or damaged, and index entries that cannot be read; the hour is recomputed when they appear. ``removed`` are
    segments that retention removed before the hour was computed. ``left_out`` are segments that arrived when the hour could no longer be
    recomputed, because retention had removed its segments. ``silent`` maps hosts to the number of whole hours between their last row and
    the last row of the hour.
    """

    hour: Hour
    made: int
    """Time of the computation, in nanoseconds since 1970."""
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
    def from_json(cls, value: Any) -> Self:
        """Return the manifest for *value*. Raises ValueError if it is invalid, or of another version."""
        if not isinstance(value, dict):
            raise ValueError("invalid manifest: not a JSON object")  # noqa: TRY004 - the value of a file, not an argument
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
