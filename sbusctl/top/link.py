"""Reports of ``sbusctl top --link``: the hosts of the link, and rates between two of its states."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sbus.bus_documents import JsonObject
from sbusctl.formatting import NOTHING, compact_count, human_bytes, human_duration, human_plural
from sbusctl.responses import integer, mapping, number, objects, text
from sbusctl.top.display import Field, show_bytes, show_count, show_text
from sbusctl.top.samples import Row, ordered, per_second

RATED = ("messages", "bytes", "lost")
"""The counters of a host with rates."""


def _show_duration(value: object) -> str:
    """Return a duration."""
    return human_duration(value if isinstance(value, int | float) else None)


LINK_FIELDS = (
    Field("host", "name", "HOST", 16, 1, show_text, is_number=False),
    Field("state", "state", "STATE", 5, 2, show_text, is_number=False),
    Field("silent", "silent_seconds", "SILENT", 7, 6, _show_duration),
    Field("in", "messages_per_second", "IN/s", 5, 3, show_count),
    Field("in-bytes", "bytes_per_second", "INB/s", 5, 5, show_bytes),
    Field("messages", "messages", "MESSAGES", 8, 7, show_count),
    Field("lost", "lost", "LOST", 5, 4, show_count),
    Field("lost-rate", "lost_per_second", "LOST/s", 6, 10, show_count),
    Field("unknown", "unknown_losses", "UNKNOWN", 7, 8, show_count),
    Field("wants", "patterns_there", "WANTS", 5, 9, show_count),
    Field("wanted", "patterns_here", "WANTED", 6, 9, show_count),
)
"""The columns of the table by host."""


@dataclass(frozen=True, slots=True)
class LinkReport:
    """The changes between two states of the link."""

    clock: float
    """Time, in seconds since 1970."""
    seconds: float | None
    """Seconds between the states; None for the first."""
    state: JsonObject
    totals: Row
    rows: list[Row]
    """In display order."""
    sorted_by: str

    @property
    def fields(self) -> Sequence[Field]:
        """The columns of the table."""
        return LINK_FIELDS

    @property
    def head(self) -> list[str]:
        """The lines above the table."""
        network = mapping(self.state, "network")
        now = datetime.fromtimestamp(self.clock, UTC).astimezone().strftime("%H:%M:%S")
        alive = sum(row["state"] == "alive" for row in self.rows)
        where = text(network, "server") or text(self.state, "transport") or NOTHING
        connected = f"connected to {where}" if network.get("connected") is True else "not connected"
        return [
            f"{now} host {text(self.state, 'host') or NOTHING}, {connected}, {human_plural(len(self.rows), 'other host')}, {alive} alive",
            f"in {self._rate('messages_in')}/s ({self._size('bytes_in')}/s), "
            f"out {self._rate('messages_out')}/s ({self._size('bytes_out')}/s), "
            f"spooled {human_bytes(integer(self.state, 'spooled_bytes'))}",
        ]

    def as_json(self) -> dict[str, object]:
        """Return the whole report as a JSON object."""
        return {
            "time": round(self.clock, 3),
            "seconds": None if self.seconds is None else round(self.seconds, 6),
            "network": {**mapping(self.state, "network"), **self.totals},
            "hosts": self.rows,
        }

    def _rate(self, counter: str) -> str:
        value = self.totals.get(f"{counter}_per_second")
        return compact_count(value if isinstance(value, int | float) else None)

    def _size(self, counter: str) -> str:
        value = self.totals.get(f"{counter}_per_second")
        return human_bytes(round(value) if isinstance(value, int | float) else None)


class LinkWatch:
    """Reports sorted by the column *sort*, whose rows have its value under *source*. *read* returns the state of the link."""

    def __init__(self, read: Callable[[], JsonObject], *, sort: str, source: str) -> None:
        self._read = read
        self._sort = sort
        self._source = source
        self._earlier: tuple[float, JsonObject] | None = None

    def report(self) -> LinkReport:
        """Read the state, and return the changes since the last one; the first report has no rates. Raises SbusError."""
        state, moment = self._read(), time.monotonic()
        earlier, self._earlier = self._earlier, (moment, state)
        seconds = None if earlier is None else moment - earlier[0]
        before = {} if earlier is None else {text(host, "name"): host for host in objects(earlier[1], "hosts")}
        rows = [_row(before.get(text(host, "name")), host, seconds) for host in objects(state, "hosts")]
        network = None if earlier is None else mapping(earlier[1], "network")
        totals = _rates(network, mapping(state, "network"), ("messages_in", "bytes_in", "messages_out", "bytes_out"), seconds)
        return LinkReport(time.time(), seconds, state, totals, ordered(rows, self._source), self._sort)


def _row(before: JsonObject | None, host: JsonObject, seconds: float | None) -> Row:
    """Return the row of one host: its state, counters and rates."""
    state = "alive" if host.get("alive") is True else "gone"
    counters = {name: integer(host, name) for name in (*RATED, "unknown_losses", "patterns_there", "patterns_here")}
    silent = number(host, "silent_seconds")
    return {"name": text(host, "name"), "state": state, "silent_seconds": silent, **counters, **_rates(before, host, RATED, seconds)}


def _rates(before: JsonObject | None, after: JsonObject, names: Sequence[str], seconds: float | None) -> Row:
    """Return the growth of counters per second; None if it is unknown, as after a restart of the link."""
    return {
        f"{name}_per_second": None
        if before is None or seconds is None
        else per_second(integer(before, name), integer(after, name), seconds)
        for name in names
    }
