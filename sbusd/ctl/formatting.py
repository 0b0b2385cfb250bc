"""Formats values for people: numbers, sizes, durations and times, each one word; and tables."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from sbusd.ctl.output import visible

NOTHING = "-"
"""Shown for values that the bus does not report."""

_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SPANS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))

_GAP = 2


def human_count(number: int | None) -> str:
    """Return a plain number, or ``-`` for None."""
    return NOTHING if number is None else str(number)


def human_plural(number: int, noun: str) -> str:
    """Return a number with its noun in the right form, such as ``1 message`` or ``2 messages``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def human_bytes(number: int | None) -> str:
    """Return a size such as ``512B``, ``1.5KiB`` or ``20MiB``, or ``-`` for None."""
    if number is None:
        return NOTHING
    if abs(number) < 1024:
        return f"{number}B"
    value = float(number)
    for unit in _BINARY:
        value /= 1024
        # 1023.95 and more would be rounded to 1024.0: use the next unit.
        if abs(value) < 1023.95 or unit == _BINARY[-1]:
            break
    digits = f"{value:.1f}".removesuffix(".0")
    return f"{digits}{unit}"


def human_duration(seconds: float | None) -> str:
    """Return a duration in its two largest units, such as ``4d2h``, ``3min7s`` or ``0s``; ``-`` for None.

    A negative duration, after the clock was set back, is ``0s``.
    """
    if seconds is None:
        return NOTHING
    rest = max(0, int(seconds))
    counts: list[tuple[int, str]] = []
    for unit, size in _SPANS:
        count, rest = divmod(rest, size)
        if count or counts:
            counts.append((count, unit))
    return "".join(f"{count}{unit}" for count, unit in counts[:2] if count) or "0s"


def human_microseconds(seconds: float) -> str:
    """Return a short time in microseconds, such as ``63us``."""
    return f"{seconds * 1e6:.0f}us"


def percentile(ascending: list[float], percent: float) -> float:
    """Return the nearest-rank percentile of a sorted list that is not empty; *percent* is above 0, up to 100."""
    rank = -(-len(ascending) * percent // 100)
    return ascending[max(0, int(rank) - 1)]


def compact_bytes(number: float | None) -> str:
    """Return a size in at most five characters, such as ``512``, ``1.5K``, ``1023K`` or ``20M``, in powers of 1024; ``-`` for None."""
    return _compact(number, 1024, "KMGTPE")


def compact_count(number: float | None) -> str:
    """Return a number or a rate in at most five characters, such as ``0.5``, ``99999``, ``123k`` or ``4.5M``; ``-`` for None.

    A number above zero is never shown as ``0``.
    """
    if number is not None and 0 < number < 9.95 and number != int(number):
        return f"{max(0.1, number):.1f}".removesuffix(".0")
    if number is not None and number < 99_999.5:
        return f"{number:.0f}"
    return _compact(number, 1000, "kMGTPE")


def _compact(number: float | None, base: int, units: str) -> str:
    """Return a number in the largest unit in which it is at least 1, with one decimal below 10."""
    if number is None:
        return NOTHING
    value, unit = float(number), ""
    for following in units:
        if value < base - 0.5:
            break
        value, unit = value / base, following
    return f"{value:.1f}".removesuffix(".0") + unit if unit and value < 9.95 else f"{value:.0f}{unit}"


def local_time(time: float) -> str:
    """Return RFC 3339 with microseconds and the local offset."""
    return datetime.fromtimestamp(time, UTC).astimezone().isoformat(timespec="microseconds")


class Column(NamedTuple):
    """A heading, and whether the column has numbers, which are right-aligned."""

    heading: str
    is_number: bool = False


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, legend: bool, width: int | None) -> list[str]:
    """Return the table as printable lines without trailing spaces.

    Args:
        columns: the headings.
        rows: cells, as many in each row as there are columns.
        legend: whether to print the headings.
        width: columns of the terminal, to which long cells are truncated with an ellipsis; None: no limit.
    """
    if not rows and not legend:
        return []
    from rich.console import Console  # noqa: PLC0415 - most calls show no table, and this import is slow
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, show_header=legend, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="")
    for column in columns:
        table.add_column(Text(column.heading), justify="right" if column.is_number else "left", no_wrap=True, overflow="ellipsis")
    cells = [[visible(cell) for cell in row] for row in rows]
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    file = io.StringIO()
    console = Console(file=file, width=width or _full_width(columns, cells), color_system=None, force_terminal=False, legacy_windows=False)
    console.print(table, crop=False)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def _full_width(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> int:
    """Return a width at which nothing is truncated; a character has at most two columns."""
    widest = [max([len(column.heading), *(len(row[index]) for row in cells)]) for index, column in enumerate(columns)]
    return 2 * sum(widest) + _GAP * len(widest)
