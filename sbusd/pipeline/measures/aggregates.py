"""Adds up the partial rows of the tables that have only sums, and of ``relay``."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sbusd.archive.tables.schema import RELAY, Table
from sbusd.pipeline.measures.folding import HOURLY, fold
from sbusd.pipeline.partials.columns import FOLDED, LEAST, MOST


def added_up(partial: DataFrame, table: Table) -> DataFrame:
    """Return the rows of *table*, from partial rows."""
    rows = folded(partial, table)
    values = [column.name for column in table.columns if not column.key]
    functions = {name: F.min if name in LEAST else F.max if name in MOST else F.sum for name in values}
    return rows.groupBy("date", "hour", *table.keys).agg(*(functions[name](name).alias(name) for name in values))


def relay(partial: DataFrame) -> DataFrame:
    """Return attempts to forward calls to other hosts, from attempts by call."""
    return (
        folded(partial, RELAY)
        .groupBy(*HOURLY, "twin", "cmd", "outcome")
        .agg(
            F.sum("attempts").alias("attempts"),
            F.sum("retries").alias("retries"),
            F.count_distinct("call_id").alias("calls"),
            F.max("longest_us").alias("longest_us"),
        )
    )


def folded(partial: DataFrame, table: Table) -> DataFrame:
    """Return partial rows with null for all but the heaviest values of the columns that clients can invent."""
    for column, weight in FOLDED[table.name]:
        partial = fold(partial, column, weight)
    return partial
