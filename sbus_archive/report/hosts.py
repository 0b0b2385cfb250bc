"""The activity of each host, worst first, and the hosts that charts and filters distinguish."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sbus_archive.report.aggregation import OTHERS, Categories, aggregate, cut_text
from sbus_archive.report.coverage import Coverage

MOST_HOSTS = 24
"""Number of hosts that charts and filters distinguish. With more, the points of the traffic chart would have to be hours apart."""

MOST_HOST_ROWS = 100
"""Maximum number of hosts in the list of hosts: the worst ones, which is as far as a reader scrolls."""

CLOSE_COMMAND = "recorder/close"
"""The recorder answers this call after the end of the record, so it is not a failed call."""


@dataclass(frozen=True, slots=True)
class HostActivity:
    """What the tables contain about one host. ``last`` is the time of its last row in nanoseconds since 1970, None without rows;
    ``silent`` is the number of whole hours from then to the last row of all hosts."""

    host: str
    records: int = 0
    messages: int = 0
    calls: int = 0
    failed: int = 0
    lost: int = 0
    refused: int = 0
    missing: int = 0
    last: int | None = None
    silent: int = 0

    @property
    def problems(self) -> int:
        """Number of lost messages, refusals, failed calls and missing rows."""
        return self.failed + self.lost + self.refused + self.missing


def host_activities(tables: dict[str, pa.Table], covers: Coverage) -> list[HostActivity]:
    """Return the hosts of *tables* and *covers*, worst first: those that stopped recording, longest first; then by their problems; then by
    their messages."""
    losses = tables["losses"].filter(pc.fill_null(pc.equal(tables["losses"].column("cause"), "lost"), False))
    messages = _by_host(tables["traffic"], "messages")
    calls = _by_host(tables["calls"], "calls")
    failed = _failed(tables["calls"])
    lost, refused = _by_host(losses, "count"), _by_host(tables["security"], "events")
    found = []
    for name in covers.hosts.keys() | covers.silent.keys():
        host = covers.hosts.get(name)
        found.append(
            HostActivity(
                name,
                host.records if host else 0,
                messages.get(name, 0),
                calls.get(name, 0),
                failed.get(name, 0),
                lost.get(name, 0),
                refused.get(name, 0),
                host.missing if host else 0,
                host.last if host else None,
                covers.silent.get(name, 0),
            )
        )
    return sorted(found, key=lambda each: (-each.silent, -each.problems, -each.messages, each.host))


def distinguished(hosts: Sequence[HostActivity]) -> Categories[str]:
    """Return the MOST_HOSTS of *hosts* with rows that have most problems, then most messages, as categories, ordered by name; the last
    label is for all others. Hosts that stopped recording have no precedence: they would displace the hosts that have something to show."""
    ranked = sorted((each for each in hosts if each.records), key=lambda each: (-each.problems, -each.messages, each.host))
    names = sorted(each.host for each in ranked[:MOST_HOSTS])
    return Categories((*(cut_text(name) for name in names), OTHERS), {name: number for number, name in enumerate(names)})


def hosts_json(hosts: Sequence[HostActivity], numbers: Categories[str]) -> dict[str, Any]:
    """Return the list of hosts for the page: the first MOST_HOST_ROWS of *hosts*, and sums of all others. ``number`` is the number of the
    host in charts and filters."""
    rest = hosts[MOST_HOST_ROWS:]
    return {
        "rows": [
            {
                "host": cut_text(each.host),
                "number": numbers.number(each.host),
                "messages": each.messages,
                "calls": each.calls,
                "failed": each.failed,
                "lost": each.lost,
                "refused": each.refused,
                "missing": each.missing,
                "last": None if each.last is None else each.last // 10**6,
                "silent": each.silent,
            }
            for each in hosts[:MOST_HOST_ROWS]
        ],
        "more": len(rest),
        "moreProblems": sum(each.problems for each in rest),
    }


def failed_calls(commands: Sequence[str | None], errors: Sequence[int], timeouts: Sequence[int], unanswered: Sequence[int]) -> int:
    """Return the number of failed calls in columns of calls: errors, timeouts, and unanswered calls except of CLOSE_COMMAND."""
    return sum(errors) + sum(timeouts) + sum(count for count, name in zip(unanswered, commands, strict=True) if name != CLOSE_COMMAND)


def _by_host(table: pa.Table, name: str) -> dict[str, int]:
    """Return the sum of the column *name* for each host."""
    return {row["host"]: row[name] or 0 for row in aggregate(table, ["host"], [name])}


def _failed(calls: pa.Table) -> dict[str, int]:
    """Return the number of failed calls of each host."""
    found: dict[str, int] = {}
    for row in aggregate(calls, ["host", "cmd"], ["errors", "timeouts", "unanswered"]):
        count = failed_calls([row["cmd"]], [row["errors"]], [row["timeouts"]], [row["unanswered"]])
        found[row["host"]] = found.get(row["host"], 0) + count
    return found
