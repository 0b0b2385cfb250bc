"""Conditions from options: those on directories select segments, others select rows while a segment is read.

Filters of ``where`` are left to Spark. It can push them down, but Spark 4.3 caches the reader with the last pushed filters for all
queries of a
DataFrame, and does not report the other filters: each query cannot get its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow.compute as pc

from sbusd.archive.record.index import IndexEntry

Operator = Literal["in", ">=", "<"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on ``host``, ``kind`` or ``ts``. ``values`` has any number of values for ``in``, else one."""

    column: Literal["host", "kind", "ts"]
    operator: Operator
    values: tuple[str | int, ...]

    @property
    def is_of_folders(self) -> bool:
        """Whether the column is a directory."""
        return self.column == "host"

    def expression(self) -> pc.Expression:
        """Return the condition as an Arrow expression."""
        field = pc.field(self.column)
        if self.operator == "in":
            return field.isin(list(self.values))
        return field >= self.values[0] if self.operator == ">=" else field < self.values[0]

    def may_hold(self, entry: IndexEntry) -> bool:
        """Return whether any row of the segment of *entry* can match; for a directory column, whether all match."""
        if self.column == "host":
            return entry.host in self.values
        if self.column == "kind":
            return not entry.kinds or any(kind in self.values for kind in entry.kinds)
        bound = int(self.values[0])
        return entry.max_ts >= bound if self.operator == ">=" else entry.min_ts < bound
