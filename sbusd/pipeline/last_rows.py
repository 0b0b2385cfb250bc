"""Hosts that have stopped recording: those whose last row is an hour older than the last of all."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable

from sbusd.archive.record.index import IndexEntry
from sbusd.archive.record.layout import HOUR_NS
from sbusd.archive.tables.hours import Hour

SILENT_HOURS = 7 * 24
"""After so many hours without a row a host is not expected any more: it was taken out of service."""


class LastRows:
    """When each host of an index recorded last, as of any hour."""

    def __init__(self, entries: Iterable[IndexEntry]) -> None:
        by_host: defaultdict[str, dict[Hour, int]] = defaultdict(dict)
        for entry in entries:
            hours, hour = by_host[entry.host], Hour(entry.date, entry.hour)
            hours[hour] = max(entry.max_ts, hours.get(hour, 0))
        self._hosts = {host: sorted(hours.items()) for host, hours in by_host.items()}

    def silent_at(self, hour: Hour, present: Iterable[IndexEntry]) -> dict[str, int]:
        """Return how many hours before the last row of *present*, segments of *hour*, each host had its own last one; only those with one
        or more, and up to :data:`SILENT_HOURS`."""
        newest = max((entry.max_ts for entry in present), default=0)
        found = {}
        for host, hours in sorted(self._hosts.items()):
            place = bisect.bisect_right(hours, hour, key=lambda item: item[0])
            silent = (newest - hours[place - 1][1]) // HOUR_NS if place else 0
            if 1 <= silent <= SILENT_HOURS:
                found[host] = silent
        return found
