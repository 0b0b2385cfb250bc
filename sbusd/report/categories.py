"""Numbers names for the page: the most used names, and one for all others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

Value = TypeVar("Value", bound=Hashable)

OTHERS = "all others"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Categories(Generic[Value]):
    """The values with a name of their own; the last number is for all others."""

    labels: tuple[str, ...]
    _numbers: Mapping[Value | None, int]

    def number(self, value: Value | None) -> int:
        """Return the number of *value*."""
        return self._numbers.get(value, len(self.labels) - 1)

    def numbers(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the number of each of *values*, vectorized: a month has millions."""
        # The named values are in the order of their numbers; null is found like any other value.
        named = pa.array(list(self._numbers), values.type)
        return pc.fill_null(pc.index_in(values, value_set=named), len(self.labels) - 1)


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
