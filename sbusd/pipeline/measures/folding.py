"""The bound on rows that strangers can make: the most used values of a column keep rows of their own, all others share one."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from sbusd.archive.tables.schema import TOP
from sbusd.pipeline.measures.records import HOURLY


def fold(rows: DataFrame, column: str, weight: str) -> DataFrame:
    """Return *rows* with null in *column* wherever its value is not among the :data:`TOP` heaviest of the hour and host.

    *weight* names the column that is added up; among equals the lesser text is kept. The rows are to be added up again.
    """
    value = F.col(column)
    weighed = rows.withColumn("weight", F.sum(weight).over(Window.partitionBy(*HOURLY, column)))
    # Null is no value: it comes last, so that it takes no place of one.
    order = Window.partitionBy(*HOURLY).orderBy(value.isNull(), F.desc("weight"), value)
    return (
        weighed.withColumn("rank", F.dense_rank().over(order))
        .withColumn(column, F.when(F.col("rank") <= TOP, value))
        .drop("weight", "rank")
    )
