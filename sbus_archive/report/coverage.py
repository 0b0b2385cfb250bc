"""What a report covers and compares, and what is missing, according to the manifests of its hours."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import RowKind
from sbus_archive.report.aggregation import cut_text
from sbus_archive.tables.hours import SILENT_HOURS, Hour, Manifest
from sbus_archive.tables.storage import TableSnapshot

COMPARED = ("traffic", "calls", "losses", "security")
"""The tables that a comparison needs."""

SHIFTS = {"day": 24, "week": 168}
"""Hours from each earlier period to that of the report. A longer report would overlap with the earlier period, so there is no
comparison."""


@dataclass(frozen=True, slots=True)
class Period:
    """Hours from ``since`` to ``until``, inclusive; ``name`` is a key of SHIFTS."""

    name: str
    since: Hour
    until: Hour


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier period, and the tables COMPARED of its hours."""

    period: Period
    snapshot: TableSnapshot


def length_of(hours: Collection[Hour]) -> int:
    """Return the number of hours from the first to the last of *hours*, inclusive; 0 if there are none."""
    return (max(hours).start - min(hours).start) // HOUR_NS + 1 if hours else 0


def earlier_periods(hours: Collection[Hour]) -> list[Period]:
    """Return the periods to compare a report of *hours* with."""
    length = length_of(hours)
    return [
        Period(name, Hour.at(min(hours).start - shift * HOUR_NS), Hour.at(max(hours).start - shift * HOUR_NS))
        for name, shift in SHIFTS.items()
        if 0 < length <= shift
    ]


_MOST_GAPS = 50
"""Maximum number of listed gaps; the latest are listed."""

_MOST_NAMES = 20
"""Maximum number of hosts named in a sentence."""

_MOST_HOSTS = 100
"""Maximum number of listed hosts; those with the most missing rows are listed. The sums are those of all hosts."""


@dataclass(slots=True)
class HostCoverage:
    """The coverage of one host."""

    records: int = 0
    first: int = 0
    last: int = 0
    """Nanoseconds since 1970."""
    missing: int = 0
    restarts: int = 0
    """Number of times that the recorder started or reconnected; each record begins with one."""
    payloads_cut: int = 0
    payloads_left_out: int = 0
    hours: set[Hour] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The combined coverage of some hours."""

    hosts: Mapping[str, HostCoverage]
    silent: Mapping[str, int]
    """Hosts that stopped recording, with the whole hours between their last row and the last row of all hosts, from one to SILENT_HOURS."""
    absent: tuple[str, ...]
    removed: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def records(self) -> int:
        """Number of rows that the tables were computed from."""
        return sum(host.records for host in self.hosts.values())

    @property
    def missing(self) -> int:
        """Number of rows that are known to be missing."""
        return sum(host.missing for host in self.hosts.values())

    @property
    def period(self) -> tuple[int, int] | None:
        """Times of the first and the last row, in nanoseconds since 1970; None without rows."""
        if not self.hosts:
            return None
        return min(host.first for host in self.hosts.values()), max(host.last for host in self.hosts.values())

    @property
    def interruptions(self) -> int:
        """Number of times that the recorder was not running or not connected. The traffic during these times is unknown."""
        return sum(max(0, host.restarts - 1) for host in self.hosts.values())

    def gaps(self) -> list[tuple[str, int, int]]:
        """Return the periods of whole hours without rows: host, begin and end, latest first."""
        found = [(name, *span) for name, host in self.hosts.items() for span in _spans_between(host.hours)]
        return sorted(found, key=lambda gap: (-gap[1], gap[0]))

    @property
    def is_whole(self) -> bool:
        """Whether nothing is known to be missing."""
        return not (self.missing or self.absent or self.removed or self.left_out or self.interruptions or self.gaps() or self.silent)

    def to_json(self) -> dict[str, Any]:
        """Return the coverage for the page."""
        gaps = self.gaps()
        period = self.period
        hosts = sorted(self.hosts.items(), key=lambda item: (-item[1].missing, item[0]))
        silent = sorted(self.silent.items(), key=lambda item: (-item[1], item[0]))
        return {
            "period": None if period is None else [moment // 10**6 for moment in period],
            "hostCount": len(hosts),
            "names": [cut_text(name) for name in sorted(self.hosts)[:_MOST_NAMES]],
            "records": self.records,
            "missing": self.missing,
            "payloads": sum(host.payloads_cut + host.payloads_left_out for host in self.hosts.values()),
            "hosts": [
                {
                    "host": cut_text(name),
                    "records": host.records,
                    "first": host.first // 10**6,
                    "last": host.last // 10**6,
                    "hours": len(host.hours),
                    "missing": host.missing,
                    "cut": host.payloads_cut,
                    "leftOut": host.payloads_left_out,
                }
                for name, host in hosts[:_MOST_HOSTS]
            ],
            "gaps": [{"host": cut_text(name), "from": begin // 10**6, "to": end // 10**6} for name, begin, end in gaps[:_MOST_GAPS]],
            "moreGaps": max(0, len(gaps) - _MOST_GAPS),
            "silent": [{"host": cut_text(name), "hours": hours} for name, hours in silent[:_MOST_NAMES]],
            "silentCount": len(silent),
            "interruptions": self.interruptions,
            "absent": len(self.absent),
            "removed": len(self.removed),
            "late": len(self.left_out),
        }


def coverage_of(manifests: Iterable[Manifest]) -> Coverage:
    """Return the combined coverage of *manifests*."""
    hosts: dict[str, HostCoverage] = {}
    absent: set[str] = set()
    removed: set[str] = set()
    left_out: set[str] = set()
    newest: Manifest | None = None
    for manifest in manifests:
        if manifest.segments and (newest is None or newest.hour < manifest.hour):
            newest = manifest
        absent.update(manifest.absent)
        removed.update(manifest.removed)
        left_out.update(manifest.left_out)
        for entry in manifest.segments:
            host = hosts.setdefault(entry.host, HostCoverage(first=entry.min_ts, last=entry.max_ts))
            host.records += entry.rows
            host.first, host.last = min(host.first, entry.min_ts), max(host.last, entry.max_ts)
            host.missing += entry.missing
            host.restarts += entry.kinds.get(RowKind.RESTART, 0)
            host.payloads_cut += entry.payloads_cut
            host.payloads_left_out += entry.payloads_left_out
            host.hours.add(manifest.hour)
    # A host without rows in the period is known from the manifest of the last hour only.
    silent = dict(newest.silent) if newest is not None else {}
    last = max((host.last for host in hosts.values()), default=0)
    silent |= {name: (last - host.last) // HOUR_NS for name, host in hosts.items()}
    return Coverage(
        hosts,
        {name: hours for name, hours in silent.items() if 1 <= hours <= SILENT_HOURS},
        tuple(sorted(absent)),
        tuple(sorted(removed)),
        tuple(sorted(left_out)),
    )


def _spans_between(hours: set[Hour]) -> list[tuple[int, int]]:
    """Return begin and end of the gaps between *hours*."""
    starts = sorted(hour.start for hour in hours)
    return [(before + HOUR_NS, after) for before, after in itertools.pairwise(starts) if after > before + HOUR_NS]
