"""Tables for people: complete in a pipe, and fitted to the width of a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sbusd.ctl.output import visible

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
