"""What the rounds of ``make bench-peers`` say: medians, ratios of paired rounds, spreads, losses, and who is ahead. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.bench.figures import columns

NOTHING = "-"
"""Where a contender was not measured."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that a round measures: how it is called, at the head of a column too, its unit, base units in one of it, and which way is
    better."""

    name: str
    head: str
    unit: str
    size: float
    more_is_better: bool = False
    is_judged: bool = True
    """Whether one can be ahead in it; else it only explains."""


RATE = Metric("deliveries", "k/s", "k/s", 1e3, more_is_better=True)
CPU = Metric("daemon's CPU per delivery", "CPU ns", "ns", 1.0)
BUSY = Metric("part of the time for which the daemon was busy", "busy %", "%", 0.01, is_judged=False)
PUBLISH_CPU = Metric("publisher's CPU per message", "pub ns", "ns", 1.0)
RECEIVE_CPU = Metric("receiver's CPU per message", "rec ns", "ns", 1.0)
P50 = Metric("round trip p50", "p50 µs", "µs", 1e3)
P99 = Metric("round trip p99", "p99 µs", "µs", 1e3)
CLIENT_CPU = Metric("daemon's CPU per client", "client µs", "µs", 1e3)
CLIENTS = Metric("clients", "k/s", "k/s", 1e3, more_is_better=True)
"""Of clients that connect, subscribe, wait until that is in force and close, one after the other."""


@dataclass(slots=True)
class Cell:
    """All rounds of one contender in one row."""

    rounds: dict[Metric, list[float]] = field(default_factory=dict)
    lost: int = 0
    reason: str = ""
    """Why it was not measured, or not to the end; a cell with a reason has no figures."""
    repeated: list[str] = field(default_factory=list)
    """Why rounds failed that were measured a second time."""

    def add(self, figures: dict[Metric, float], lost: int = 0) -> None:
        """Add a round."""
        for metric, figure in figures.items():
            self.rounds.setdefault(metric, []).append(figure)
        self.lost += lost

    def give_up(self, reason: str) -> None:
        """Forget the rounds there were: a median of some would be compared with one of all."""
        self.rounds.clear()
        self.lost = 0
        self.reason = reason

    def middle(self, metric: Metric) -> float | None:
        """Return the median of the rounds, in base units, or None if there are none."""
        return median(self.rounds[metric]) if metric in self.rounds else None

    def best(self, metric: Metric) -> float | None:
        """Return the best of the rounds: what else a machine does can only make one worse."""
        choose = max if metric.more_is_better else min
        return choose(self.rounds[metric]) if metric in self.rounds else None

    def ratio(self, metric: Metric, reference: Cell) -> float | None:
        """Return the median of the ratios to *reference*, round by round; None if one of them was not measured."""
        if metric not in self.rounds or metric not in reference.rounds:
            return None
        return median(one / other for one, other in zip(self.rounds[metric], reference.rounds[metric], strict=True))

    def spread(self, metric: Metric) -> float | None:
        """Return how far the rounds lie apart: largest less smallest, as a part of the median; None without rounds, or if that is zero."""
        rounds = self.rounds.get(metric)
        middle = median(rounds) if rounds else 0
        return (max(rounds) - min(rounds)) / middle if rounds and middle else None


@dataclass(slots=True)
class Row:
    """One kind of work, and what each contender did of it; contenders are in the order of the table, ours begin with ``sbus``."""

    name: str
    cells: dict[str, Cell]

    def metrics(self) -> list[Metric]:
        """Return what is measured in this row, in order."""
        return list(dict.fromkeys(metric for cell in self.cells.values() for metric in cell.rounds))

    def best_of_ours(self, metric: Metric) -> str | None:
        """Return which of our contenders does best, or None if none was measured."""
        ours = {name: figure for name in self.cells if is_ours(name) and (figure := self.cells[name].middle(metric)) is not None}
        choose = max if metric.more_is_better else min
        return choose(ours, key=lambda name: ours[name]) if ours else None

    def ahead(self, metric: Metric) -> dict[str, float]:
        """Return the peers that do better than the best of ours, with their ratio to it."""
        best = self.best_of_ours(metric) if metric.is_judged else None
        if best is None:
            return {}
        found = {name: cell.ratio(metric, self.cells[best]) for name, cell in self.cells.items() if not is_ours(name)}
        return {name: ratio for name, ratio in found.items() if ratio is not None and (ratio > 1 if metric.more_is_better else ratio < 1)}


def is_ours(contender: str) -> bool:
    """Return whether a contender is sbusd, in one of the ways it is used."""
    return contender.startswith("sbus")


def digits(figure: float | None) -> str:
    """Write a figure with three digits that mean something, or :data:`NOTHING`."""
    if figure is None:
        return NOTHING
    return f"{figure:.0f}" if figure >= 99.95 else f"{figure:.3g}"


def matrix(title: str, rows: Sequence[Row], write: Callable[[Row, Cell], str]) -> str:
    """Lay out what *write* makes of each cell, under *title*: contenders down, rows across."""
    names = list(dict.fromkeys(name for row in rows for name in row.cells))
    lines = [("", *(row.name for row in rows))]
    lines += [(name, *(write(row, row.cells[name]) if name in row.cells else NOTHING for row in rows)) for name in names]
    return f"{title}\n{columns(lines)}"


def medians(metric: Metric, rows: Sequence[Row]) -> str:
    """Lay out the medians of *metric*, in its unit."""

    def write(_row: Row, cell: Cell) -> str:
        middle = cell.middle(metric)
        return digits(None if middle is None else middle / metric.size)

    return matrix(f"{metric.name}, {metric.unit}", rows, write)


def bests(metric: Metric, rows: Sequence[Row]) -> str:
    """Lay out the best round of *metric*, in its unit."""

    def write(_row: Row, cell: Cell) -> str:
        best = cell.best(metric)
        return digits(None if best is None else best / metric.size)

    return matrix(f"{metric.name}, {metric.unit}, in the best round", rows, write)


def ratios(metric: Metric, rows: Sequence[Row], reference: str) -> str:
    """Lay out the medians of the paired rounds' ratios to the contender *reference*."""

    def write(row: Row, cell: Cell) -> str:
        ratio = cell.ratio(metric, row.cells[reference]) if reference in row.cells else None
        return NOTHING if ratio is None else f"{ratio:.2f}"

    return matrix(f"{metric.name}, by those of {reference}", rows, write)


def listing(row: Row, metrics: Sequence[Metric], reference: str) -> str:
    """Lay out *metrics* of one row, a contender a line, with the first one's ratio to *reference*, and what was lost."""
    first = metrics[0]
    lines: list[Sequence[str]] = [("", first.head, "ratio", *(metric.head for metric in metrics[1:]), "lost")]
    for name, cell in row.cells.items():
        ratio = cell.ratio(first, row.cells[reference])
        middles = [(cell.middle(metric), metric) for metric in metrics]
        shown = [digits(None if middle is None else middle / metric.size) for middle, metric in middles]
        lines.append((name, shown[0], NOTHING if ratio is None else f"{ratio:.2f}", *shown[1:], str(cell.lost) if cell.rounds else NOTHING))
    return f"{row.name}; the ratio is to {reference}\n{columns(lines)}"


def spreads(rows: Sequence[Row]) -> str:
    """Lay out, for each row and what it measures, how far the rounds of a contender lie apart: in the middle, and at worst."""
    lines = [("", "middle", "worst", "of")]
    for row in rows:
        for metric in row.metrics():
            found = {name: spread for name, cell in row.cells.items() if (spread := cell.spread(metric)) is not None}
            if not found:
                continue
            worst = max(found, key=lambda name: found[name])
            lines.append((f"{row.name}, {metric.name}", f"{median(found.values()):.0%}", f"{found[worst]:.0%}", worst))
    return f"spread over the rounds\n{columns(lines)}"


def peers_ahead(rows: Sequence[Row]) -> list[str]:
    """Return a line for each figure of a row in which a peer does better than the best of ours."""
    lines = []
    for row in rows:
        for metric in row.metrics():
            if found := row.ahead(metric):
                names = ", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items())
                lines.append(f"{row.name}, {metric.name}: {names} of {row.best_of_ours(metric)}'s")
    return lines


def losses(rows: Sequence[Row]) -> list[str]:
    """Return a line for each contender that lost messages in a row."""
    return [f"{row.name}: {name} lost {cell.lost} messages" for row in rows for name, cell in row.cells.items() if cell.lost]


def repetitions(rows: Sequence[Row]) -> list[str]:
    """Return a line for each round that was measured a second time."""
    return [f"{row.name}: {name}: {reason}" for row in rows for name, cell in row.cells.items() for reason in cell.repeated]


def left_out(rows: Sequence[Row]) -> list[str]:
    """Return a line for each reason for which something was not measured, with what and where."""
    places: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, cell in row.cells.items():
            if cell.reason:
                places.setdefault((name, cell.reason), []).append(row.name)
    return [
        f"{name}: {reason}" + ("" if len(where) == sum(name in row.cells for row in rows) else f" ({'; '.join(where)})")
        for (name, reason), where in places.items()
    ]
