"""What ``make bench-store`` prints: a table of 80 columns, and the bounds. No I/O."""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from tests.bench.figures import Bound, columns

STORE = "sbus-store"
PEERS = ("Redis", "JetStream")


class Kind(enum.Enum):
    """What a figure is."""

    RATE = enum.auto()
    SECONDS = enum.auto()
    COUNT = enum.auto()


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table. *bound* is about the median of sbus-store; *ratios* are the least ratios to peers, by name."""

    name: str
    label: str
    kind: Kind
    bound: Bound | None = None
    ratios: tuple[tuple[str, float], ...] = ()


ROWS = (
    Row("put", "puts/s, 1 publisher", Kind.RATE, ratios=(("Redis", 0.1), ("JetStream", 0.15))),
    Row("puts", "puts/s, 16 publishers", Kind.RATE, ratios=(("Redis", 0.1), ("JetStream", 0.25))),
    Row("groups", "puts/s, 16, 64 at a time", Kind.RATE, Bound(30_000, at_least=True), (("Redis", 0.3), ("JetStream", 2.0))),
    Row("jobs", "jobs/s, take and ack", Kind.RATE, ratios=(("Redis", 0.1), ("JetStream", 1.0))),
    Row("value", "last value, ms", Kind.SECONDS),
    Row("turns", "last value, round trips", Kind.COUNT, Bound(2)),
    Row("loaded", "  with last=True, ms", Kind.SECONDS),
    Row("loaded turns", "  with last=True, round trips", Kind.COUNT),
    Row("redelivery", "job after kill -9, ms", Kind.SECONDS, Bound(0.010)),
    Row("acknowledged", "acknowledged before kill", Kind.COUNT),
    Row("lost", "lost after kill -9", Kind.COUNT, Bound(0)),
    Row("start", "start, {keys:,} keys, s", Kind.COUNT, Bound(2.0)),
)
"""The rows; ``start`` is about sbus-store alone."""


class Results:
    """The figures of all rounds, by row and server."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, row: str, name: str, value: float) -> None:
        """Add the figure of the server *name*; times are in seconds."""
        self._values[row][name].append(value)

    def figure(self, row: Row, name: str) -> float | None:
        """Return the median of the rounds, of lost messages the sum, or None if it was not measured."""
        values = self._values[row.name].get(name)
        if not values:
            return None
        return sum(values) if row.name in ("acknowledged", "lost") else median(values)

    def ratio(self, row: Row, peer: str) -> float | None:
        """Return how much better sbus-store is than *peer*, the median of the rounds; None for counts, and if one was not measured."""
        own, others = self._values[row.name].get(STORE), self._values[row.name].get(peer)
        if not own or not others or row.kind is Kind.COUNT:
            return None
        pairs = zip(own, others, strict=False)
        return median(mine / theirs if row.kind is Kind.RATE else theirs / mine for mine, theirs in pairs)


def table(results: Results, keys: int) -> str:
    """Return the table."""
    heading = ["", STORE]
    for peer in PEERS:
        heading += [peer, "ratio"]
    rows = [heading]
    for row in ROWS:
        cells = [row.label.format(keys=keys), _written(row, results.figure(row, STORE))]
        for peer in PEERS:
            ratio = results.ratio(row, peer)
            cells += [_written(row, results.figure(row, peer)), "" if ratio is None else f"{ratio:.3g}"]
        rows.append(cells)
    return columns(rows)


def bound_lines(results: Results) -> list[tuple[str, bool]]:
    """Return a line for each bound that could be checked, and whether it holds."""
    lines = []
    for row in ROWS:
        label = row.label.partition(", {")[0].removesuffix(", ms")
        own = results.figure(row, STORE)
        if row.bound is not None and own is not None:
            lines.append(_line(label, row.bound, own, _unit(row, own), _unit(row, row.bound.limit)))
        for peer, least in row.ratios:
            if (ratio := results.ratio(row, peer)) is not None:
                lines.append(_line(f"{label}, ratio to {peer}", Bound(least, at_least=True), ratio, f"{ratio:.3g}", f"{least:g}"))
    return lines


def _line(label: str, bound: Bound, value: float, written: str, limit: str) -> tuple[str, bool]:
    holds = bound.holds(value)
    return f"{label}: {written} {'>=' if bound.at_least else '<='} {limit}: {'ok' if holds else 'NO'}", holds


def _unit(row: Row, value: float) -> str:
    """Return *value* with its unit."""
    unit = {"redelivery": " ms", "value": " ms", "start": " s"}.get(row.name, "")
    return f"{_written(row, value)}{unit}"


def _written(row: Row, value: float | None) -> str:
    """Return *value* as the table shows it."""
    if value is None:
        return ""
    if row.kind is Kind.SECONDS:
        return f"{value * 1e3:.3g}" if value < 1 else f"{value * 1e3:,.0f}"
    if row.kind is Kind.RATE or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}"
