"""Reads rows of the record with Spark, and defines expressions that several tables share."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation names it

from sbusd.archive.record.entry import IndexEntry
from sbusd.archive.storage.location import ArchivePath, is_remote
from sbusd.archive.tables.schema import PREFIX_SEGMENTS, TOP
from sbusd.pipeline.source.columns import DDL
from sbusd.pipeline.source.datasource import SbusSource, register

HOURLY = ("date", "hour", "host")
"""Columns that identify the hour and the host in every computation."""


def read_records(spark: SparkSession, archive: ArchivePath, entries: Iterable[IndexEntry]) -> DataFrame:
    """Return the rows of the segments of *entries*, at least one. Spark reads only the columns that are used.

    Spark itself has no client for object stores. Their rows come through the Data Source, with all columns.
    """
    if is_remote(archive):
        register(spark)
        chosen = ",".join(entry.path for entry in entries)
        return gathered(spark.read.format(SbusSource.name()).schema(DDL).option("segments", chosen).load(str(archive)))
    paths = [str(archive / entry.path) for entry in entries]
    return gathered(spark.read.schema(DDL).option("basePath", str(archive)).parquet(*paths))


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


def of_kind(records: DataFrame, *kinds: str) -> DataFrame:
    """Return the rows of *kinds*. Segments are sorted by kind, so most other rows are not read."""
    return records.where(F.col("kind").isin(*kinds))


def prefix() -> Column:
    """Return the prefix of the column ``key``."""
    return F.substring_index("key", "/", PREFIX_SEGMENTS)


def minute() -> Column:
    """Return the start of the minute of the column ``ts``."""
    return F.expr("timestamp_seconds(ts div 60000000000 * 60)")


def moment(name: str) -> Column:
    """Return the column *name*, nanoseconds since 1970, as a timestamp."""
    return F.expr(f"timestamp_micros({name} div 1000)")


def total(what: Column | str) -> Column:
    """Return the sum of *what*; null counts as 0."""
    return F.coalesce(F.sum(what), F.lit(0)).cast("bigint")


def count_where(condition: Column) -> Column:
    """Return the number of rows for which *condition* is true."""
    return F.count_if(condition).cast("bigint")


def is_unheard() -> Column:
    """Return whether no connection received or lost the message."""
    return (F.col("recipients") == 0) & (F.coalesce("discarded", F.lit(0)) == 0)


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
