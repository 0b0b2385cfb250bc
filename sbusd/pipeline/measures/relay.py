"""The table ``relay``."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sbusd.archive.record.kinds import Kind
from sbusd.archive.tables.schema import RELAY
from sbusd.pipeline.measures.folding import fold
from sbusd.pipeline.measures.records import HOURLY, count_where, of_kind


def compute(records: DataFrame) -> DataFrame:
    """Return attempts to hand calls to other hosts."""
    attempts = of_kind(records, Kind.RELAY).select(
        *HOURLY,
        "twin",
        F.col("call_cmd").alias("cmd"),
        F.col("code").alias("outcome"),
        "attempt",
        "call_id",
        "duration",
        F.lit(1).alias("one"),
    )
    counted = (
        fold(attempts, "cmd", "one")
        .groupBy(*HOURLY, "twin", "cmd", "outcome")
        .agg(
            F.count("*").alias("attempts"),
            count_where(F.col("attempt") > 1).alias("retries"),
            F.count_distinct("call_id").alias("calls"),
            F.expr("max(duration) div 1000").alias("longest_us"),
        )
    )
    return counted.select("date", "hour", *RELAY.names)
