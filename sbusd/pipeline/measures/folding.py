"""Bounds the number of rows that clients can cause: all but the heaviest values of a column share a row."""

from __future__ import annotations

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from sbusd.archive.tables.schema import TOP

HOURLY = ("date", "hour", "host")
"""Columns that identify the hour and the host in every computation."""


def is_single(spark: SparkSession) -> bool:
    """Return whether each table is computed in one task, as in a small run."""
    return spark.conf.get("spark.sql.shuffle.partitions") == "1"


def gathered(rows: DataFrame) -> DataFrame:
    """Return *rows* in one partition in a small run: then Spark needs no exchange for them, and no stage but the last."""
    return rows.coalesce(1) if is_single(rows.sparkSession) else rows


def spread(rows: DataFrame, *columns: str) -> DataFrame:
    """Return *rows* partitioned by *columns*, except in a small run."""
    return rows if is_single(rows.sparkSession) else rows.repartition(*columns)


def stored(rows: DataFrame) -> DataFrame:
    """Return *rows*, which are used twice, stored in memory and on disk once they are computed, except in a small run.

    The caller of the computation releases them, with ``spark.catalog.clearCache()``.
    """
    return rows if is_single(rows.sparkSession) else rows.persist(StorageLevel.MEMORY_AND_DISK)


def fold(rows: DataFrame, column: str, weight: str) -> DataFrame:
    """Return *rows* with null in *column* unless its value is among the :data:`TOP` heaviest of its hour and host.

    This bounds the number of rows that clients can cause. *weight* is the column to sum; among equal values the lower text is kept. Sum
    the rows again afterwards.
    """
    return _fold_at_once(rows, column, weight) if is_single(rows.sparkSession) else _fold_in_parts(rows, column, weight)


def _fold_in_parts(rows: DataFrame, column: str, weight: str) -> DataFrame:
    """Fold by the sums of each value: no task sorts the rows of an hour, and each sends at most :data:`TOP` values of an hour and host."""
    rows = stored(rows)
    sums = rows.where(F.col(column).isNotNull()).groupBy(*HOURLY, column).agg(F.sum(weight).alias("weight"))
    order = Window.partitionBy(*HOURLY).orderBy(F.desc("weight"), column)
    # Spark applies such a limit before the exchange too, as long as it is at most spark.sql.optimizer.windowGroupLimitThreshold.
    heaviest = sums.withColumn("rank", F.row_number().over(order)).where(F.col("rank") <= TOP)
    named = rows.join(heaviest.select(*HOURLY, column, F.lit(True).alias("is_named")), [*HOURLY, column], "left")
    return named.withColumn(column, F.when(F.col("is_named"), F.col(column))).drop("is_named")


def _fold_at_once(rows: DataFrame, column: str, weight: str) -> DataFrame:
    """Fold with windows over all rows: in a small run, this needs no exchange and no second job."""
    value = F.col(column)
    weighed = rows.withColumn("weight", F.sum(weight).over(Window.partitionBy(*HOURLY, column)))
    # Null comes last, so that it does not take the place of a value.
    order = Window.partitionBy(*HOURLY).orderBy(value.isNull(), F.desc("weight"), value)
    return (
        weighed.withColumn("rank", F.dense_rank().over(order))
        .withColumn(column, F.when(F.col("rank") <= TOP, value))
        .drop("weight", "rank")
    )
