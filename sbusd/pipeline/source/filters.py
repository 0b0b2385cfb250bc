"""Conditions that options put on rows: those on folders choose segments, the rest choose rows while a segment is read.

Filters of ``where`` stay with Spark. It would hand them down, but Spark 4.3 keeps the reader with the filters that it handed down last for
all queries of a frame, and tells the reader nothing of the others: there is no way to give each query its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow.compute as pc

from sbusd.archive.record.index import IndexEntry

Operator = Literal["in", ">=", "<"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition on ``host``, ``kind`` or ``ts``. ``values`` are what it compares with: any number for ``in``, else one."""

    column: Literal["host", "kind", "ts"]
    operator: Operator
    values: tuple[str | int, ...]

    @property
    def is_of_folders(self) -> bool:
        """Whether the column is one that folders stand for."""
        return self.column == "host"

    def expression(self) -> pc.Expression:
        """Return the condition as Arrow reads it."""
        field = pc.field(self.column)
        if self.operator == "in":
            return field.isin(list(self.values))
        return field >= self.values[0] if self.operator == ">=" else field < self.values[0]

    def may_hold(self, entry: IndexEntry) -> bool:
        """Return whether a row of the segment of *entry* can meet the condition; for a folder's column, whether all do."""
        if self.column == "host":
            return entry.host in self.values
        if self.column == "kind":
            return not entry.kinds or any(kind in self.values for kind in entry.kinds)
        bound = int(self.values[0])
        return entry.max_ts >= bound if self.operator == ">=" else entry.min_ts < bound
