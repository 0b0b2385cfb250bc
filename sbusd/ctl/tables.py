"""Plain columns: no lines, no boxes; on a terminal cut to its width, elsewhere as wide as they must be."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sbusd.ctl.output import visible

_GAP = 2


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and whether the column holds numbers, which stand to the right."""

    heading: str
    is_number: bool = False


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, legend: bool, width: int | None) -> list[str]:
    """Return the table as lines, made printable, without spaces at their ends.

    Args:
        columns: what the columns are called.
        rows: cells, as many in each as there are columns.
        legend: whether to put the headings above.
        width: columns of the terminal, for which long cells are cut with an ellipsis; None to cut nothing.
    """
    if not rows and not legend:
        return []
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
    """Return a width at which nothing is cut; a character takes two columns at most."""
    widest = [max([len(column.heading), *(len(row[index]) for row in cells)]) for index, column in enumerate(columns)]
    return 2 * sum(widest) + _GAP * len(widest)
