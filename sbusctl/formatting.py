"""Formats values and tables for people; a table is complete in a pipe, and fitted to the width of a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from sbusctl.output import visible

_GAP = "  "

_LEAST = 10
"""Width to which text is cut before a column is omitted."""


class Column(NamedTuple):
    """A column of a table. Numbers are right-aligned and never cut."""

    heading: str
    is_number: bool = False
    rank: int = 0
    """Columns with the highest rank are omitted first; those with rank 0 never."""
    least: int = _LEAST
    """Width to which text can be cut; at least that of the heading."""


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, legend: bool, width: int | None) -> list[str]:
    """Return the table as printable lines without trailing spaces.

    If *width* is too small, columns are omitted and text is cut with an ellipsis; with a legend, the last line names these columns.

    Args:
        columns: the headings.
        rows: cells, as many in each row as there are columns.
        legend: whether to print the headings.
        width: columns of the terminal; None: no limit.
    """
    if not rows and not legend:
        return []
    cells = [[visible(cell) for cell in row] for row in rows]
    if legend:
        cells.insert(0, [column.heading for column in columns])
    widths = [max(map(text_width, column)) for column in zip(*cells, strict=True)]
    shown = list(range(len(columns)))
    if width is not None:
        least = [_least(column, full) for column, full in zip(columns, widths, strict=True)]
        shown = _fitting(columns, least, width)
        widths = _cut(widths, least, shown, width)
    lines = [_line([(row[index], widths[index], columns[index].is_number) for index in shown], width) for row in cells]
    omitted = [column.heading for index, column in enumerate(columns) if index not in shown]
    if omitted and legend:
        note = f"Not shown: {', '.join(omitted)}; use --json or a wider terminal."
        lines += ["", *wrapped(note, width)]
    return lines


def wrapped(text: str, width: int | None, indent: str = "") -> list[str]:
    """Return *text* in lines of at most *width* columns, except for long words; *indent* begins each line but the first.

    None: in one line.
    """
    if width is None:
        return [text]
    return textwrap.wrap(text, max(20, width), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]


def text_width(text: str) -> int:
    """Return the number of columns that *text* has on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - only for such text

    return cell_len(text)


def cut_text(text: str, width: int) -> str:
    """Return *text*, cut with an ellipsis if it has more than *width* columns."""
    if text_width(text) <= width:
        return text
    from rich.cells import set_cell_size  # noqa: PLC0415 - only for long text

    return f"{set_cell_size(text, max(0, width - 1)).rstrip()}…"


def _least(column: Column, full: int) -> int:
    """Return the minimum width of *column*, whose longest cell has *full* columns."""
    return full if column.is_number else min(full, max(column.least, len(column.heading)))


def _fitting(columns: Sequence[Column], least: Sequence[int], width: int) -> list[int]:
    """Return the positions of the columns that fit into *width*."""
    shown = list(range(len(columns)))
    while _total(least[index] for index in shown) > width and any(columns[index].rank for index in shown):
        shown.remove(max(shown, key=lambda index: columns[index].rank))
    return shown


def _cut(widths: Sequence[int], least: Sequence[int], shown: Sequence[int], width: int) -> list[int]:
    """Return the widths with which the columns *shown* fit, if that is possible: the widest text is cut most."""
    found = list(widths)
    while _total(found[index] for index in shown) > width:
        wide = [index for index in shown if found[index] > least[index]]
        if not wide:
            break
        found[max(wide, key=lambda index: found[index])] -= 1
    return found


def _total(widths: Iterable[int]) -> int:
    """Return the width of columns and the gaps between them."""
    found = list(widths)
    return sum(found) + len(_GAP) * (len(found) - 1)


def _line(cells: Iterable[tuple[str, int, bool]], width: int | None) -> str:
    """Return a line of cells: text, width, and whether it is a number."""
    placed = []
    for text, size, is_number in cells:
        short = cut_text(text, size)
        space = " " * (size - text_width(short))
        placed.append(space + short if is_number else short + space)
    line = _GAP.join(placed).rstrip()
    return line if width is None else cut_text(line, width)


NOTHING = "-"
"""Shown for values that the bus does not report."""

_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SPANS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


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


def human_date(time: float) -> str:
    """Return the date of *time*, in seconds since 1970, in UTC; NOTHING if the calendar does not have it."""
    try:
        return datetime.fromtimestamp(time, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return NOTHING
