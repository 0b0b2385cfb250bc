"""The calls of one batch of the live bus: which are slow, and which have their other half in another batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documentation names it

from sbus_archive.pipeline.live.minutes import Group
from sbus_archive.pipeline.live.open_calls import MAX_OPEN, MAX_OPEN_OF_USER, BatchCalls, CallRequest, slow_group
from sbus_archive.pipeline.measures import prefix
from sbus_archive.record.schema import Role

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MINUTE_NS = 60 * 10**9


def calls_in(rows: DataFrame, known: Sequence[int], slow_ns: int) -> BatchCalls:
    """Return the calls in *rows*; *known* are the numbers of open calls. A call is slow if its reply came after *slow_ns* nanoseconds.

    Only sums and a bounded number of requests and replies are returned to this process.
    """
    is_request, is_reply = F.col("call_role") == Role.REQUEST.value, F.col("call_role") == Role.REPLY.value
    request = F.min(F.when(is_request, F.struct("ts", prefix().alias("prefix"), "uid")))
    calls = rows.where(F.col("call_id").isNotNull()).groupBy("call_id").agg(
        request.alias("q"), F.min(F.when(is_reply, F.col("ts"))).alias("reply")
    )  # fmt: skip
    calls = calls.persist()
    try:
        requests, dropped = _open_requests(calls)
        return BatchCalls(requests, _replies(calls, known), _slow(calls, slow_ns), dropped)
    finally:
        calls.unpersist()


def _slow(calls: DataFrame, slow_ns: int) -> tuple[Group, ...]:
    """Return the sums of slow calls that are whole in the batch."""
    slow = calls.where(F.col("reply") - F.col("q.ts") >= slow_ns)
    minute = F.expr(f"reply div {_MINUTE_NS}").alias("minute")
    found = slow.groupBy(minute, F.col("q.prefix").alias("prefix"), F.col("q.uid").alias("uid")).count().collect()
    return tuple(slow_group(row["minute"], row["prefix"], row["uid"], row["count"]) for row in found)


def _open_requests(calls: DataFrame) -> tuple[tuple[CallRequest, ...], int]:
    """Return the first requests of each user without a reply, and the number of the others."""
    waiting = calls.where(F.col("q").isNotNull() & F.col("reply").isNull()).select("call_id", "q.*")
    ranked = waiting.withColumn("rank", F.row_number().over(Window.partitionBy("uid").orderBy("ts", "call_id")))
    kept = ranked.where(F.col("rank") <= MAX_OPEN_OF_USER).orderBy("rank", "ts").limit(MAX_OPEN).collect()
    return tuple(CallRequest(row["call_id"], row["ts"], row["prefix"], row["uid"]) for row in kept), waiting.count() - len(kept)


def _replies(calls: DataFrame, known: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the replies to calls that are *known*."""
    if not known:
        return ()
    found = calls.where(F.col("q").isNull() & F.col("call_id").isin(list(known))).select("call_id", "reply").collect()
    return tuple((row["call_id"], row["reply"]) for row in found)
