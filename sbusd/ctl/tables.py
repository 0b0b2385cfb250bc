"""Tables in plain columns without lines; on a terminal truncated to its width."""

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
