"""The table ``calls``: each request with its first reply, also across the end of the hour."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sbusd.archive.record.schema import Kind, Role
from sbusd.archive.tables.schema import CALL_SECONDS, CALLS, LATENCY_STEPS
from sbusd.pipeline.measures.records import HOURLY, fold, gathered, is_unheard, of_kind, spread, total

_PARTIES = ("cmd", "caller_uid", "caller_unit", "callee_uid", "callee_unit")
_SUMS = ("calls", "answered", "errors", "timeouts", "unanswered", "undelivered")
_PERCENTS = (50, 90, 99)
_STEP_BITS = LATENCY_STEPS.bit_length() - 1

_CALL = ("call_id", *HOURLY)
"""Identifies a call. The number comes first, because Spark sorts by it, and compares text only where numbers are equal."""


def compute(records: DataFrame, following: DataFrame) -> DataFrame:
    """Return the calls whose requests are in *records*. Replies are in *records*, or in *following*, which begins after the hour.

    *following* has no segment of *records*.
    """
    requests = _requests(records)
    replies = gathered(_replies(records).unionByName(_replies(following)))
    in_time = (F.col("reply_seq") > F.col("seq")) & (F.col("reply_ts").between(F.col("ts"), F.col("ts") + F.lit(CALL_SECONDS * 10**9)))
    # A hash join on one 64-bit number: twice as fast as sorting both sides.
    joined = requests.alias("q").join(
        replies.hint("shuffle_hash").alias("r"),
        (F.col("q.host") == F.col("r.reply_host")) & (F.col("q.call_id") == F.col("r.reply_id")) & in_time,
        "left",
    )
    calls = joined.groupBy(*_CALL).agg(F.min(F.struct("seq", "ts", "cmd", "uid", "unit", "exp", "unheard")).alias("q"), _first_reply())
    return _totals(fold(_by_bucket(_classified(calls)), "cmd", "calls")).select("date", "hour", *CALLS.names)


def _requests(records: DataFrame) -> DataFrame:
    """Return each request once per hour, with the time of its first attempt."""
    rows = of_kind(records, Kind.MESSAGE).where((F.col("call_role") == Role.REQUEST) & F.col("call_id").isNotNull())
    # Partitioned once, as the join needs it; the groupings before and after it need no further exchange.
    placed = spread(
        rows.select(*_CALL, "seq", "ts", "call_cmd", "uid", "unit", "call_exp", is_unheard().alias("unheard")), "host", "call_id"
    )
    first = F.min(F.struct("seq", "ts", F.col("call_cmd").alias("cmd"), "uid", "unit", F.col("call_exp").alias("exp"), "unheard"))
    return placed.groupBy(*_CALL).agg(first.alias("request")).select(*_CALL, "request.*")


def _replies(records: DataFrame) -> DataFrame:
    """Return all replies, with renamed columns."""
    rows = of_kind(records, Kind.MESSAGE).where((F.col("call_role") == Role.REPLY) & F.col("call_id").isNotNull())
    return rows.select(
        F.col("host").alias("reply_host"),
        F.col("call_id").alias("reply_id"),
        F.col("seq").alias("reply_seq"),
        F.col("ts").alias("reply_ts"),
        F.col("uid").alias("callee_uid"),
        F.col("unit").alias("callee_unit"),
        F.coalesce("call_failed", F.lit(False)).alias("failed"),
    )


def _first_reply() -> Column:
    """Return the first reply of a request, or null."""
    return F.min(F.when(F.col("reply_seq").isNotNull(), F.struct("reply_seq", "reply_ts", "callee_uid", "callee_unit", "failed"))).alias(
        "r"
    )


def _classified(calls: DataFrame) -> DataFrame:
    """Return one row for each call, with its outcome as zeros and ones, and the bucket of its latency."""
    latency = F.expr("(r.reply_ts - q.ts) div 1000")
    replied = F.col("r").isNotNull()
    # A double, because the time limit of a caller in nanoseconds may exceed 64 bits.
    late = replied & F.coalesce(F.col("r.reply_ts") - F.col("q.ts") > F.col("q.exp").cast("double") * F.lit(1e9), F.lit(False))
    return calls.select(
        *HOURLY,
        F.col("q.cmd").alias("cmd"),
        F.col("q.uid").alias("caller_uid"),
        F.col("q.unit").alias("caller_unit"),
        F.col("r.callee_uid").alias("callee_uid"),
        F.col("r.callee_unit").alias("callee_unit"),
        F.lit(1).alias("calls"),
        _flag(replied & ~late).alias("answered"),
        _flag(replied & ~late & F.col("r.failed")).alias("errors"),
        _flag(late).alias("timeouts"),
        _flag(~replied).alias("unanswered"),
        _flag(~replied & F.col("q.unheard")).alias("undelivered"),
        latency.alias("latency"),
    ).withColumn("bucket", _bucket())


def _flag(condition: Column) -> Column:
    """Return 1 where *condition* is true, else 0."""
    return F.when(condition, 1).otherwise(0)


def _bucket() -> Column:
    """Return the bucket of the column ``latency``, as :func:`sbusd.archive.tables.schema.bucket_of`."""
    # The length of bin() is the exact logarithm; log2() of a double is not.
    return F.expr(
        f"(greatest(0, length(bin(latency)) - {_STEP_BITS + 1}) * {LATENCY_STEPS})"
        f" + (latency >> greatest(0, length(bin(latency)) - {_STEP_BITS + 1}))"
    )


def _by_bucket(calls: DataFrame) -> DataFrame:
    """Return calls by parties and bucket: a hundredth of the rows, before they are ranked."""
    return calls.groupBy(*HOURLY, *_PARTIES, "bucket").agg(*(F.sum(name).alias(name) for name in _SUMS), F.max("latency").alias("longest"))


def _totals(counted: DataFrame) -> DataFrame:
    """Return the rows of the table: calls summed by bucket again, because commands can share a row, then collected into histograms."""
    by_bucket = counted.groupBy(*HOURLY, *_PARTIES, "bucket").agg(
        *(F.sum(name).alias(name) for name in _SUMS), F.max("longest").alias("longest")
    )
    entry = F.when(F.col("bucket").isNotNull(), F.struct("bucket", "calls"))
    gathered = by_bucket.groupBy(*HOURLY, *_PARTIES).agg(
        *(total(name).alias(name) for name in _SUMS),
        F.max("longest").alias("latency_max_us"),
        F.array_sort(F.collect_list(entry)).alias("latencies"),
        total(F.when(F.col("bucket").isNotNull(), F.col("calls"))).alias("replied"),
    )
    return gathered.withColumn("percentiles", _percentiles()).select("*", "percentiles.*")


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
