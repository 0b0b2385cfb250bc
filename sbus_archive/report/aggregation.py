"""Aggregates rows of a table with Arrow, because a month has millions of rows, and distinguishes the most used keys and users."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

BIN = "bin"
"""The column that :func:`with_bins` adds."""

Value = TypeVar("Value", bound=Hashable)

OTHERS = "all others"
UNKNOWN = "unknown"

MOST_CHARACTERS = 200
"""Maximum length of a text from the bus."""


def aggregate(
    table: pa.Table, by: Sequence[str], sums: Sequence[str], *, largest: Sequence[str] = (), smallest: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return one row for each combination of *by*, in no order: *sums*, and the *largest* and *smallest* values."""
    wanted = [(name, how) for names, how in ((sums, "sum"), (largest, "max"), (smallest, "min")) for name in names]
    grouped = table.group_by(list(by)).aggregate(wanted)
    names = {f"{name}_{how}": name for name, how in wanted}
    return [{names.get(name, name): value for name, value in row.items()} for row in grouped.to_pylist()]


def with_bins(table: pa.Table, minutes: int) -> pa.Table:
    """Return *table* with a column of bin numbers, counted from 1970, computed from its column ``minute``."""
    micros = table.column("minute").cast(pa.int64())
    return table.append_column(BIN, pc.divide(micros, minutes * 60 * 10**6))


def replace_columns(table: pa.Table, **columns: pa.ChunkedArray) -> pa.Table:
    """Return *table* with new values in *columns*."""
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table


def aggregate_entries(groups: Sequence[int | None], entries: pa.ChunkedArray, key: str, value: str) -> dict[int, list[tuple[int, int]]]:
    """Return for each group the sorted sums of *entries*, lists of structs: *key*, and the sum of *value*.

    *groups* has the group of each row, None to skip the row.
    """
    chosen = pa.array(groups, pa.int64())
    filled = pc.is_valid(chosen)
    lists = entries.combine_chunks().filter(filled)
    structs = lists.flatten()
    flat = pa.table(
        {
            "group": chosen.filter(filled).take(pc.list_parent_indices(lists)),
            "key": pc.struct_field(structs, key),
            "value": pc.struct_field(structs, value),
        }
    )
    summed = flat.group_by(["group", "key"]).aggregate([("value", "sum")]).sort_by([("group", "ascending"), ("key", "ascending")])
    found: dict[int, list[tuple[int, int]]] = {}
    for group, number, count in zip(*(summed.column(name).to_pylist() for name in ("group", "key", "value_sum")), strict=True):
        found.setdefault(group, []).append((number, count))
    return found


@dataclass(frozen=True, slots=True)
class Categories(Generic[Value]):
    """The values with a name of their own; the last number is for all others."""

    labels: tuple[str, ...]
    _numbers: Mapping[Value | None, int]

    def number(self, value: Value | None) -> int:
        """Return the number of *value*."""
        return self._numbers.get(value, self.others)

    @property
    def others(self) -> int:
        """The number of all other values."""
        return len(self.labels) - 1

    def numbers(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the number of each of *values*, vectorized: a month has millions."""
        # The named values are in the order of their numbers; null is found like any other value.
        named = pa.array(list(self._numbers), values.type)
        return pc.fill_null(pc.index_in(values, value_set=named), self.others)


def most_used(
    weights: Iterable[tuple[Value | None, int]], most: int, label: Callable[[Value], str], unknown: str | None = None
) -> Categories[Value]:
    """Return the *most* heaviest values as categories; equal weights are in alphabetical order. Weights of one value are added.

    None gets the name *unknown*; without *unknown* it counts among all others.
    """
    sums: dict[Value | None, int] = {}
    for value, weight in weights:
        if value is not None or unknown is not None:
            sums[value] = sums.get(value, 0) + weight
    heaviest = sorted(sums, key=lambda value: (-sums[value], str(value)))[:most]
    labels = [unknown or UNKNOWN if value is None else label(value) for value in heaviest]
    return Categories((*labels, OTHERS), {value: number for number, value in enumerate(heaviest)})


def cut_text(text: str) -> str:
    """Return *text*, truncated to MOST_CHARACTERS."""
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…"


def cut(text: str | None) -> str | None:
    """Return *text*, truncated to MOST_CHARACTERS."""
    return None if text is None else cut_text(text)
