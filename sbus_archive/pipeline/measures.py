"""Computes the tables with Spark, from the partial rows of :mod:`sbus_archive.pipeline.partials`. Nothing is kept from hour to hour.

Each function takes partial rows of any number of hours, and returns ``date``, ``hour`` and the columns of the table. The rows of an hour
do not depend on the other hours.

The states of one start of a link are a series; its counters begin at zero when the link starts. A difference belongs to the hour in which
it begins, so the state that ends it can be in the next hour. A difference that would begin in a part of the record which does not exist is
not counted.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # noqa: N812 - as all of Spark's documentation names it

from sbus_archive.pipeline.partials.calls import PARTIES, SUMS
from sbus_archive.pipeline.partials.link_states import COUNTERS, LINK
from sbus_archive.pipeline.partials.source import FOLDED, LEAST, MOST
from sbus_archive.record.layout import HOUR_NS
from sbus_archive.tables.hours import Hour
from sbus_archive.tables.schema import CALLS, LATENCY_STEPS, LINK_SECONDS, LINKS, PREFIX_SEGMENTS, RELAY, TOP, Table

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


def added_up(partial: DataFrame, table: Table) -> DataFrame:
    """Return the rows of *table*, from partial rows."""
    rows = folded(partial, table)
    values = [column.name for column in table.columns if not column.key]
    functions = {name: F.min if name in LEAST else F.max if name in MOST else F.sum for name in values}
    return rows.groupBy("date", "hour", *table.keys).agg(*(functions[name](name).alias(name) for name in values))


def relay_sums(partial: DataFrame) -> DataFrame:
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


def prefix() -> Column:
    """Return the prefix of the column ``key``."""
    return F.substring_index("key", "/", PREFIX_SEGMENTS)


def total(what: Column | str) -> Column:
    """Return the sum of *what*; null counts as 0."""
    return F.coalesce(F.sum(what), F.lit(0)).cast("bigint")


_PERCENTS = (50, 90, 99)


def call_histograms(partial: DataFrame) -> DataFrame:
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
    """Return the upper bounds of the percentiles in one pass, as :func:`sbus_archive.tables.schema.percentile`, at most the maximum.

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
    """Return SQL for the largest latency in *bucket*, as :func:`sbus_archive.tables.schema.upper_bound`."""
    shift = f"cast(greatest(0, ({bucket} div {LATENCY_STEPS}) - 1) as int)"
    return f"((({bucket} - {shift} * {LATENCY_STEPS} + 1L) << {shift}) - 1)"


_SERIES = ("host", "realm", "link", "started")
_SUMS = ("alive_us", *COUNTERS, "states")
_ROW = ("minute", "realm", "link", "peer")


def link_differences(states: DataFrame, hours: Iterable[tuple[Hour, str]]) -> DataFrame:
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
