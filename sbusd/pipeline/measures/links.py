"""The table ``links``: other hosts, from the differences of successive states that a link published.

The states of one start of a link are a series; its counters begin at zero when the link starts. A difference belongs to the hour in which
it begins, so the state that ends it can be in the next hour. A difference that would begin in a part of the record which does not exist is
not counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from sbusd.archive.record.layout import HOUR_NS
from sbusd.archive.tables.hours import Hour
from sbusd.archive.tables.schema import LINK_SECONDS, LINKS
from sbusd.pipeline.measures.folding import HOURLY, fold, gathered
from sbusd.pipeline.partials.link_rows import COUNTERS
from sbusd.pipeline.partials.link_states import LINK

_SERIES = ("host", "realm", "link", "started")
_SUMS = ("alive_us", *COUNTERS, "states")
_ROW = ("minute", "realm", "link", "peer")


def compute(states: DataFrame, hours: Iterable[tuple[Hour, str]]) -> DataFrame:
    """Return the rows of *hours* of hosts, from states of these hours and of the following ones, which are used twice."""
    chosen = [(hour.start, host) for hour, host in hours]
    own = states.where(~F.col("is_following"))
    differences = _differences(states, states.sparkSession.createDataFrame(chosen, "start bigint, host string"))
    changed = gathered(differences.unionByName(_samples(own)))
    # The link itself is not one of the ranked hosts.
    ranked = fold(changed.withColumn("other", F.when(F.col("peer") != LINK, F.col("peer"))), "other", "messages")
    folded = ranked.withColumn("peer", F.when(F.col("peer") == LINK, F.col("peer")).otherwise(F.col("other")))
    summed = folded.groupBy(*HOURLY, *_ROW).agg(
        *(F.sum(name).alias(name) for name in _SUMS), F.max("spooled_max_bytes").alias("spooled_max_bytes")
    )
    return summed.select("date", "hour", *LINKS.names)


def _samples(states: DataFrame) -> DataFrame:
    """Return what a state says about its own minute."""
    return states.select(
        *_placed("ts"),
        "host",
        "realm",
        "link",
        F.lit(LINK).alias("peer"),
        *(F.lit(0).cast("bigint").alias(name) for name in ("alive_us", *COUNTERS)),
        F.col("spooled").alias("spooled_max_bytes"),
        F.lit(1).cast("bigint").alias("states"),
    )


def _differences(states: DataFrame, hours: DataFrame) -> DataFrame:
    """Return the differences of successive states that begin in *hours*, rows of start and host: one row for each entry."""
    order = Window.partitionBy(*_SERIES).orderBy("date", "hour", "seq")
    numbered = states.withColumns(
        {
            "number": F.row_number().over(order),
            # The first state is preceded by zeros, at the start of the link.
            "begin": F.coalesce(F.lag("ts").over(order), F.least("started", "ts")),
            "omitted_before": F.coalesce(F.lag("omitted").over(order), F.lit(0)),
        }
    )
    placed = numbered.select(
        *_SERIES,
        "ts",
        "number",
        "begin",
        "omitted_before",
        F.expr(f"begin div {HOUR_NS} * {HOUR_NS}").alias("start"),
        F.explode("entries").alias("entry"),
    )
    by_entry = Window.partitionBy(*_SERIES, "entry.name").orderBy("number")
    paired = placed.withColumns({"before": F.lag("entry").over(by_entry), "number_before": F.lag("number").over(by_entry)})
    return (
        paired.withColumn("before", F.when(F.col("number_before") == F.col("number") - 1, F.col("before")))
        # A host that was among those omitted is not new, and its counters are unknown.
        .where(F.col("before").isNotNull() | (F.col("omitted_before") == 0))
        .where(F.col("ts") < F.col("start") + F.lit(HOUR_NS + LINK_SECONDS * 10**9))
        .join(hours, ["start", "host"], "left_semi")
        .select(
            *_placed("begin"),
            "host",
            "realm",
            "link",
            F.col("entry.name").alias("peer"),
            F.when(F.col("before.alive"), F.expr("greatest(ts - begin, 0) div 1000")).otherwise(0).alias("alive_us"),
            *(_difference(name) for name in COUNTERS),
            F.lit(None).cast("bigint").alias("spooled_max_bytes"),
            F.lit(0).cast("bigint").alias("states"),
        )
    )


def _difference(name: str) -> Column:
    """Return by how much a counter has grown; 0 if it is less than before."""
    grown = F.col(f"entry.{name}") - F.coalesce(f"before.{name}", F.lit(0))
    if name == "disconnects":
        # Without a counter of disconnects, a state without a network after one with it is the only sign.
        grown = F.coalesce(grown, (F.coalesce("before.alive", F.lit(False)) & ~F.col("entry.alive")).cast("bigint"))
    return F.greatest(grown, F.lit(0)).alias(name)


def _placed(moment: str) -> tuple[Column, ...]:
    """Return date, hour and minute of the column *moment*, nanoseconds since 1970."""
    minute = F.expr(f"timestamp_seconds({moment} div 60000000000 * 60)")
    return F.date_format(minute, "yyyy-MM-dd").alias("date"), F.hour(minute).alias("hour"), minute.alias("minute")
