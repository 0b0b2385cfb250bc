"""The table ``calls``: each request with its first reply, also across the end of the hour."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sbusd.archive.tables.schema import CALLS, LATENCY_STEPS
from sbusd.pipeline.measures.aggregates import folded
from sbusd.pipeline.measures.expressions import total
from sbusd.pipeline.measures.folding import HOURLY
from sbusd.pipeline.partials.calls import PARTIES, SUMS

_PERCENTS = (50, 90, 99)


def histograms(partial: DataFrame) -> DataFrame:
    """Return calls by parties, from those by parties and latency bucket; without percentiles."""
    by_bucket = (
        folded(partial, CALLS)
        .groupBy(*HOURLY, *PARTIES, "bucket")
        .agg(*(F.sum(name).alias(name) for name in SUMS), F.max("longest").alias("longest"))
    )
    entry = F.when(F.col("bucket").isNotNull(), F.struct("bucket", "calls"))
    return by_bucket.groupBy(*HOURLY, *PARTIES).agg(
        *(total(name).alias(name) for name in SUMS),
        F.max("longest").alias("latency_max_us"),
        F.array_sort(F.collect_list(entry)).alias("latencies"),
    )


def with_percentiles(rows: DataFrame) -> DataFrame:
    """Return *rows* with their percentiles."""
    counted = rows.withColumn("replied", F.expr("aggregate(latencies, 0L, (sum, entry) -> sum + entry.calls)"))
    return counted.withColumn("percentiles", _percentiles()).select("*", "percentiles.*")


def _percentiles() -> Column:
    """Return the upper bounds of the percentiles in one pass, as :func:`sbusd.archive.tables.schema.percentile`, at most the maximum.

    ``latencies`` are sorted; ``replied`` is their number of calls. Counting it for each bucket would take quadratic time.
    """
    begin = ", ".join(f"cast(null as bigint) as p{percent}" for percent in _PERCENTS)
    found = ", ".join(
        f"if(a.p{percent} is null and a.seen + e.calls >= (replied * {percent} + 99) div 100, e.bucket, a.p{percent}) as p{percent}"
        for percent in _PERCENTS
    )
    bounds = ", ".join(f"least({_upper_bound(f'a.p{percent}')}, latency_max_us) as latency_p{percent}_us" for percent in _PERCENTS)
    return F.expr(
        f"aggregate(latencies, struct(0L as seen, {begin}), (a, e) -> struct(a.seen + e.calls as seen, {found}), a -> struct({bounds}))"
    )


def _upper_bound(bucket: str) -> str:
    """Return SQL for the largest latency in *bucket*, as :func:`sbusd.archive.tables.schema.upper_bound`."""
    shift = f"cast(greatest(0, ({bucket} div {LATENCY_STEPS}) - 1) as int)"
    return f"((({bucket} - {shift} * {LATENCY_STEPS} + 1L) << {shift}) - 1)"
