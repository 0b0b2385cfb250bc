"""The picture of the layers for docs/architecture.md, drawn from the rules of who may import whom."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Set
from itertools import zip_longest

TOP_OF_THE_BUS = "daemon"
"""The part that joins all parts of the daemon; no client imports it."""

Rules = Mapping[str, Set[str]]
"""For each part of the project, the other parts that it may import."""

CELL_WIDTH = 46
"""Columns of the widest cell in a layer; longer ones are wrapped, so that the picture has at most 120 columns."""

IMPORTS_WIDTH = 92
"""Columns of the list of parts that a part may import; a longer one is wrapped."""

_BEGIN, _END = "<!-- layers: begin -->", "<!-- layers: end -->"


def with_picture(text: str, rules: Rules) -> str:
    """Return the Markdown *text* with the picture of *rules* between its two markers. Raises: ValueError without the markers."""
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise ValueError(f"the text must have one {_BEGIN} and one {_END}")
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}\n\n```\n{draw(rules)}```\n\n{_END}{rest.partition(_END)[2]}"


def draw(rules: Rules) -> str:
    """Return a text with a line for each layer, the highest first, then a line for each part with the parts that it may import."""
    parts = {part: rules[part] for part in rules if part}
    heights = {part: _height(part, parts) for part in parts}
    columns = [_daemon_only(parts), _clients_only(parts)]
    columns.append(set(parts) - columns[0] - columns[1])
    titles = ["the daemon", "programs and clients", "used by both"]
    rows = [["layer", *titles]]
    for height in sorted(set(heights.values()), reverse=True):
        cells = [_lines((part for part in column if heights[part] == height), CELL_WIDTH) for column in columns]
        rows += _rows([str(height)], *cells)
    imports = [["part", "may import"]]
    for part in sorted(parts, key=lambda each: (-heights[each], each)):
        imports += _rows([part], _lines(parts[part], IMPORTS_WIDTH) or ["-"])
    return f"{_table(rows)}\n{_table(imports)}"


def _lines(names: Iterable[str], width: int) -> list[str]:
    """Return *names*, sorted, as lines of at most *width* columns."""
    return textwrap.wrap("  ".join(sorted(names)), width)


def _rows(*cells: list[str]) -> list[list[str]]:
    """Return a row of cells as rows of one line each."""
    return [list(row) for row in zip_longest(*cells, fillvalue="")]


def _height(part: str, rules: Rules) -> int:
    """Return the layer of *part*: 0 if it imports nothing, else one more than the highest part that it imports."""
    return max((1 + _height(each, rules) for each in rules[part]), default=0)


def _below(part: str, rules: Rules) -> set[str]:
    """Return *part* and all that it imports, directly or not."""
    return {part}.union(*(_below(each, rules) for each in rules[part]))


def _daemon_only(rules: Rules) -> set[str]:
    """Return the parts that only the daemon imports."""
    of_daemon = _below(TOP_OF_THE_BUS, rules)
    return of_daemon.difference(*(rules[part] for part in rules if part not in of_daemon))


def _clients_only(rules: Rules) -> set[str]:
    """Return the parts that the daemon does not import."""
    return set(rules) - _below(TOP_OF_THE_BUS, rules)


def _table(rows: list[list[str]]) -> str:
    """Return *rows* as lines with aligned columns; the first row is the head."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]]) + "\n"
