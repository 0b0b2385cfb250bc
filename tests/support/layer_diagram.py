"""Pictures of layers, for docs/architecture.md and README.md of packages, drawn from who may import whom."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Set
from itertools import zip_longest

Rules = Mapping[str, Set[str]]
"""For each part of the project, by its name with dots, the other parts that it may import."""

LIST_WIDTH = 92
"""Columns of a list of parts; a longer one is wrapped: the picture has at most 120 columns."""

_BEGIN, _END = "<!-- layers: begin -->", "<!-- layers: end -->"


def with_picture(text: str, rules: Rules) -> str:
    """Return the Markdown *text* with the picture of *rules* between its two markers. Raises: ValueError without the markers."""
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        raise ValueError(f"the text must have one {_BEGIN} and one {_END}")
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}\n\n```\n{draw(rules)}```\n\n{_END}{rest.partition(_END)[2]}"


def rules_of_packages(rules: Rules) -> Rules:
    """Return which package may import which other, if their parts have *rules*."""
    found: dict[str, set[str]] = {}
    for part, others in rules.items():
        found.setdefault(_package(part), set()).update(map(_package, others))
    return {package: others - {package} for package, others in found.items()}


def rules_of(package: str, rules: Rules) -> Rules:
    """Return the rules of the parts of *package*, its own by their names in it: ``broker``, but ``sbus.protocol`` in sbusd."""
    return {
        part.removeprefix(f"{package}."): {other.removeprefix(f"{package}.") for other in others}
        for part, others in rules.items()
        if _package(part) == package
    }


def draw(rules: Rules) -> str:
    """Return a text with a line for each layer, the highest first, then a line for each part with the parts that it may import."""
    heights = {part: _height(part, rules) for part in rules}
    layers = [["layer", "parts"]]
    for height in sorted(set(heights.values()), reverse=True):
        layers += _rows([str(height)], _lines(part for part in rules if heights[part] == height))
    imports = [["part", "may import"]]
    for part in sorted(rules, key=lambda each: (-heights[each], each)):
        imports += _rows([part], _lines(rules[part]) or ["-"])
    return f"{_table(layers)}\n{_table(imports)}"


def _package(part: str) -> str:
    """Return the package that *part* is in."""
    return part.partition(".")[0]


def _lines(names: Iterable[str]) -> list[str]:
    """Return *names*, sorted, as lines of at most LIST_WIDTH columns."""
    return textwrap.wrap("  ".join(sorted(names)), LIST_WIDTH)


def _rows(*cells: list[str]) -> list[list[str]]:
    """Return a row of cells as rows of one line each."""
    return [list(row) for row in zip_longest(*cells, fillvalue="")]


def _height(part: str, rules: Rules) -> int:
    """Return the layer of *part*: 0 if it imports none of *rules*, else one more than the highest part that it imports."""
    return max((1 + _height(each, rules) for each in rules[part] if each in rules), default=0)


def _table(rows: list[list[str]]) -> str:
    """Return *rows* as lines with aligned columns; the first row is the head."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]]) + "\n"
