"""The table ``losses``."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sbusd.archive.record.kinds import Kind
from sbusd.archive.tables.schema import LOSSES
from sbusd.pipeline.measures.folding import fold
from sbusd.pipeline.measures.records import HOURLY, minute, of_kind, prefix, total

_KEYS = ("minute", "cause", "uid", "unit", "prefix", "reason")
_CAUSES = {Kind.MESSAGE: "discarded", Kind.LOSS: "lost", Kind.DISCONNECT: "abandoned"}
"""Of the kinds whose name is not the cause."""

_SUMS = ("events", "count", "duration_us")


def compute(records: DataFrame) -> DataFrame:
    """Return what was lost by minute and cause."""
    kind = F.col("kind")
    is_message = kind == Kind.MESSAGE
    of_someone = kind.isin(Kind.MESSAGE, Kind.LOSS, Kind.DISCONNECT)
    is_loss = F.when(is_message, F.col("discarded") > 0).when(kind == Kind.DISCONNECT, F.col("lost") > 0).otherwise(True)
    lost = of_kind(records, Kind.MESSAGE, Kind.LOSS, Kind.DISCONNECT, Kind.TAP_LOSS, Kind.GAP, Kind.RESTART).where(is_loss)
    counted = lost.groupBy(
        *HOURLY,
        minute().alias("minute"),
        F.coalesce(*(F.when(kind == each, F.lit(cause)) for each, cause in _CAUSES.items()), kind).alias("cause"),
        _only(of_someone, F.col("uid")).alias("uid"),
        _only(of_someone, F.col("unit")).alias("unit"),
        _only(is_message, prefix()).alias("prefix"),
        _only(~is_message, F.col("reason")).alias("reason"),
    ).agg(
        F.count("*").alias("events"),
        total(F.when(is_message, F.col("discarded")).otherwise(F.col("lost"))).alias("count"),
        F.expr("coalesce(sum(duration div 1000), 0)").alias("duration_us"),
    )
    folded = fold(counted, "prefix", "count")
    return folded.groupBy(*HOURLY, *_KEYS).agg(*(F.sum(name).alias(name) for name in _SUMS)).select("date", "hour", *LOSSES.names)


def _only(condition: Column, value: Column) -> Column:
    """Return *value* where *condition* is true, else null."""
    return F.when(condition, value)
