"""Filters that Spark hands down: those on folders choose segments, the rest choose rows while a segment is read.

A filter that is taken is applied exactly, for Spark does not look at it again; what is not understood stays with Spark.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc
from pyspark.sql import datasource as spark

from sbusd.record.index import IndexEntry
from sbusd.record.schema import PARTITION_SCHEMA, SCHEMA

Plain = str | int | bool

_PARTITION = frozenset(PARTITION_SCHEMA.names)
_COLUMNS = frozenset(field.name for field in SCHEMA if str(field.type) != "binary") | _PARTITION

_COMPARISONS: dict[type[spark.Filter], str] = {
    spark.EqualTo: "=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
    spark.StringStartsWith: "starts",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One filter: ``operator`` is ``=``, ``<``, ``<=``, ``>``, ``>=``, ``in``, ``starts``, ``null`` or ``not null``.

    ``values`` are what it compares with: one, for ``in`` any number, for the last two none. They are pickled to where rows are read.
    """

    column: str
    operator: str
    values: tuple[Plain, ...] = ()

    @property
    def is_of_folders(self) -> bool:
        """Whether the column is one that folders stand for."""
        return self.column in _PARTITION

    def expression(self) -> pc.Expression:
        """Return the condition as Arrow reads it."""
        field = pc.field(self.column)
        if self.operator in ("null", "not null"):
            return field.is_null() if self.operator == "null" else field.is_valid()
        if self.operator == "in":
            return field.isin(list(self.values))
        value = self.values[0]
        if self.operator == "starts":
            return pc.starts_with(field, str(value))
        return {"=": field == value, "<": field < value, "<=": field <= value, ">": field > value, ">=": field >= value}[self.operator]

    def may_hold(self, entry: IndexEntry) -> bool:
        """Return whether a row of the segment of *entry* can meet the condition; for a folder's column, whether all do."""
        match self.column:
            case "date" | "hour" | "host":
                return self._holds(getattr(entry, self.column))
            case "kind" if self.operator in ("=", "in", "starts") and entry.kinds:
                return any(self._holds(kind) for kind in entry.kinds)
            case "ts" | "seq" if self.operator not in ("null", "not null"):
                low, high = (entry.min_ts, entry.max_ts) if self.column == "ts" else (entry.first_seq, entry.last_seq)
                return self._may_hold_between(low, high)
        return True

    def _holds(self, found: Plain) -> bool:
        """Return whether *found*, which is not null, meets it."""
        if self.operator in ("null", "not null"):
            return self.operator == "not null"
        if self.operator == "in":
            return found in self.values
        value = self.values[0]
        if self.operator == "starts":
            return str(found).startswith(str(value))
        if self.operator == "=":
            return found == value
        if isinstance(found, str) or isinstance(value, str):
            # As Spark compares text: by its bytes in UTF-8.
            return _ordered(self.operator, str(found).encode(), str(value).encode())
        return _ordered(self.operator, found, value)

    def _may_hold_between(self, low: int, high: int) -> bool:
        """Return whether a number from *low* to *high* can meet it."""
        numbers = [value for value in self.values if isinstance(value, int)]
        match self.operator:
            case "=" | "in":
                return any(low <= number <= high for number in numbers)
            case "<" | "<=":
                return _ordered(self.operator, low, numbers[0])
            case _:
                return _ordered(self.operator, high, numbers[0])


def condition_of(given: spark.Filter) -> Condition | None:
    """Return the condition that Spark's filter is, None if it must stay with Spark."""
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if len(path) != 1 or path[0] not in _COLUMNS:
        return None
    column = path[0]
    if isinstance(given, spark.IsNull | spark.IsNotNull):
        return Condition(column, "null" if isinstance(given, spark.IsNull) else "not null")
    if isinstance(given, spark.In):
        values = tuple(value for value in given.value if value is not None)  # null is in no list
        return Condition(column, "in", values) if values and _fit(column, values) else None
    operator = _COMPARISONS.get(type(given))
    value = getattr(given, "value", None)
    if operator is None or value is None or not _fit(column, (value,)):
        return None
    return Condition(column, operator, (value,))


def _fit(column: str, values: tuple[object, ...]) -> bool:
    """Return whether *values* are of the column's own type, so that nothing need be converted."""
    kind = str((SCHEMA if column in SCHEMA.names else PARTITION_SCHEMA).field(column).type)
    wanted = {"string": str, "bool": bool}.get(kind, int)
    return all(type(value) is wanted for value in values)


def _ordered(operator: str, left: int | bytes, right: int | bytes) -> bool:
    """Return whether *left* stands before or behind *right*, as *operator* says; both are of one type."""
    if isinstance(left, bytes) and isinstance(right, bytes):
        return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[operator]
    first, second = int(left), int(right)
    return {"<": first < second, "<=": first <= second, ">": first > second, ">=": first >= second}[operator]
