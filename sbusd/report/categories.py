"""Names in a report by number: the most used ones, and one name for all others."""

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
    """The values that have a name of their own; the last number is all others."""

    labels: tuple[str, ...]
    _numbers: Mapping[Value | None, int]

    def number(self, value: Value | None) -> int:
        """Return the number of *value*."""
        return self._numbers.get(value, len(self.labels) - 1)

    def numbers(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the number of each of *values*: a month has millions."""
        # The values that have a name stand in the order of their numbers; a null is found like any other.
        named = pa.array(list(self._numbers), values.type)
        return pc.fill_null(pc.index_in(values, value_set=named), len(self.labels) - 1)


def most_used(
    weights: Iterable[tuple[Value | None, int]], most: int, label: Callable[[Value], str], unknown: str | None = None
) -> Categories[Value]:
    """Return the *most* heaviest values as categories; weights of one value add up, and equal ones are in alphabetical order.

    None has the name *unknown*, or counts among all others if that is None.
    """
    sums: dict[Value | None, int] = {}
    for value, weight in weights:
        if value is not None or unknown is not None:
            sums[value] = sums.get(value, 0) + weight
    heaviest = sorted(sums, key=lambda value: (-sums[value], str(value)))[:most]
    labels = [unknown or UNKNOWN if value is None else label(value) for value in heaviest]
    return Categories((*labels, OTHERS), {value: number for number, value in enumerate(heaviest)})
