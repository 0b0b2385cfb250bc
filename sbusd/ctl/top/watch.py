"""Makes reports on one bus: each covers the time since the previous one."""

from __future__ import annotations

from sbusd.ctl.responses import text
from sbusd.ctl.top.names import NameCache
from sbusd.ctl.top.rates import connection_rows, ordered, totals, user_rows
from sbusd.ctl.top.samples import Sample, Sampler
from sbusd.ctl.top.screen import TopReport


class Watch:
    """Reports sorted by the column *sort*, whose rows have its value under *source*."""

    def __init__(self, sampler: Sampler, *, by_user: bool, sort: str, source: str) -> None:
        self._sampler = sampler
        self._by_user = by_user
        self._sort = sort
        self._source = source
        self._names = NameCache()
        self._earlier: Sample | None = None

    def report(self) -> TopReport:
        """Take a sample, and return the changes since the last one; the first report has no rates.

        Raises:
            SbusError: the bus refused a request, or is gone.
        """
        earlier, later = self._earlier, self._sampler.sample()
        self._earlier = later
        rows = connection_rows(earlier, later, self._names)
        self._names.keep(later.connections)
        sums = totals(earlier, later, rows)
        if self._by_user:
            rows = user_rows(rows, later.users, self._names)
        return TopReport(
            clock=later.clock,
            seconds=None if earlier is None else later.moment - earlier.moment,
            scope="bus" if text(later.stats, "scope") == "bus" else "connections",
            totals=sums,
            rows=ordered(rows, self._source),
            by_user=self._by_user,
            sorted_by=self._sort,
            unseen=later.unseen,
        )
