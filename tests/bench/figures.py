"""What the bench concludes from what it measured: medians of paired rounds, and whether a bound holds. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


class Unit(enum.Enum):
    """How a figure is written; the value is the number of the base unit (1, nanosecond, byte) in one of it."""

    PER_SECOND = ("k/s", 1e3)
    NANOSECONDS = ("ns", 1.0)
    MICROSECONDS = ("µs", 1e3)
    MILLISECONDS = ("ms", 1e6)
    BYTES = ("B", 1.0)
    MESSAGES = ("msg", 1.0)
    MEBIBYTES = ("MiB", float(1 << 20))

    def write(self, figure: float) -> str:
        """Write *figure*, which is in the base unit, with three digits that mean something."""
        name, size = self.value
        scaled = figure / size
        return f"{scaled:,.0f} {name}" if scaled >= 100 else f"{scaled:.3g} {name}"


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit that a ratio, or a figure by itself, has to keep; the limit itself still holds."""

    limit: float
    at_least: bool = False

    def holds(self, judged: float) -> bool:
        """Tell whether *judged* keeps the bound."""
        return judged >= self.limit if self.at_least else judged <= self.limit


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: rounds of a figure, and rounds of the reference if it is compared with one."""

    name: str
    unit: Unit
    values: tuple[float, ...]
    bound: Bound
    references: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.values or (self.references and len(self.references) != len(self.values)):
            raise ValueError(f"{self.name}: {len(self.values)} values cannot be paired with {len(self.references)} references")

    @property
    def ratios(self) -> tuple[float, ...]:
        """Value by reference, round by round; empty without a reference."""
        return tuple(value / reference for value, reference in zip(self.values, self.references, strict=False))

    @property
    def judged(self) -> float:
        """What the bound is about: the median of the paired ratios, or of the values."""
        return median(self.ratios or self.values)

    @property
    def holds(self) -> bool:
        """Whether the bound holds."""
        return self.bound.holds(self.judged)

    def cells(self) -> tuple[str, ...]:
        """Return the line as the table shows it, in the order of :data:`HEADINGS`."""
        sign = "≥" if self.bound.at_least else "≤"
        limit = f"{self.bound.limit:g}" if self.references else self.unit.write(self.bound.limit)
        reference = self.unit.write(median(self.references)) if self.references else ""
        ratio = f"{self.judged:.2f}" if self.references else ""
        spread = f"{min(self.ratios):.2f} to {max(self.ratios):.2f}" if len(self.ratios) > 1 else ""
        return self.name, self.unit.write(median(self.values)), reference, ratio, spread, f"{sign} {limit}", "yes" if self.holds else "NO"


HEADINGS = ("line", "value", "reference", "ratio", "rounds from, to", "bound", "holds")


def table(lines: Sequence[Line]) -> str:
    """Lay out *lines* under :data:`HEADINGS`, with as little space as keeps the columns straight."""
    return columns([HEADINGS, *(line.cells() for line in lines)])


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Lay out *rows*, all with as many cells: the first to the left, figures to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(_row(row, widths) for row in rows)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Lay out one row: the name to the left, figures to the right."""
    name, *figures = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join([name.strip().ljust(widths[0]), *figures])
