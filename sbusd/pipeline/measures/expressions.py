"""Expressions that several tables share."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation names it

from sbusd.archive.tables.schema import PREFIX_SEGMENTS


def prefix() -> Column:
    """Return the prefix of the column ``key``."""
    return F.substring_index("key", "/", PREFIX_SEGMENTS)


def total(what: Column | str) -> Column:
    """Return the sum of *what*; null counts as 0."""
    return F.coalesce(F.sum(what), F.lit(0)).cast("bigint")
