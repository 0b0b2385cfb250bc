"""The tables that only count and sum rows: ``traffic``, ``users``, ``losses``, ``security``, ``disconnects`` and ``relay``."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sbusd.archive.record.schema import Kind, Role
from sbusd.archive.tables.schema import DISCONNECTS, LOSSES, RELAY, SECURITY, TRAFFIC, USERS
from sbusd.pipeline.measures.records import HOURLY, count_where, fold, is_unheard, minute, moment, of_kind, prefix, total
from sbusd.protocol.errors import ErrorCode

_TRAFFIC_SUMS = ("messages", "bytes", "recipients", "queued", "discarded", "unheard")
_BUS = 0
"""The connection number of the bus itself."""
_LOSSES_KEYS = ("minute", "cause", "uid", "unit", "prefix", "reason")
_CAUSES = {Kind.MESSAGE: "discarded", Kind.LOSS: "lost", Kind.DISCONNECT: "abandoned"}
"""Causes of kinds whose name differs from the cause."""

_LOSSES_SUMS = ("events", "count", "duration_us")
_DENIALS = (ErrorCode.EACCES.name, ErrorCode.EPERM.name)
_QUOTAS = (ErrorCode.EDQUOT.name, ErrorCode.EMFILE.name)
_SECURITY_KEYS = ("class", "code", "reason", "uid", "unit", "key")
_DISCONNECTS_KEYS = ("uid", "unit", "code", "reason")


def traffic(records: DataFrame) -> DataFrame:
    """Return messages by minute, prefix and user."""
    messages = of_kind(records, Kind.MESSAGE)
    counted = messages.groupBy(*HOURLY, minute().alias("minute"), prefix().alias("prefix"), "uid").agg(
        F.count("*").alias("messages"),
        total("payload_bytes").alias("bytes"),
        total("recipients").alias("recipients"),
        total("queued").alias("queued"),
        total("discarded").alias("discarded"),
        count_where(is_unheard()).alias("unheard"),
    )
    folded = fold(counted, "prefix", "messages")
    summed = folded.groupBy(*HOURLY, "minute", "prefix", "uid").agg(*(F.sum(name).alias(name) for name in _TRAFFIC_SUMS))
    return summed.select("date", "hour", *TRAFFIC.names)


def users(records: DataFrame) -> DataFrame:
    """Return the activity of each user and unit."""
    kind, role = F.col("kind"), F.col("call_role")
    is_message = kind == Kind.MESSAGE
    events = of_kind(records, Kind.MESSAGE, Kind.CONNECT, Kind.SUBSCRIBE, Kind.DENIAL, Kind.LOSS)
    counted = (
        events.where(F.coalesce("conn", F.lit(-1)) != _BUS)
        .groupBy(*HOURLY, "uid", "unit")
        .agg(
            count_where(kind == Kind.CONNECT).alias("connections"),
            count_where(is_message).alias("messages"),
            total(F.when(is_message, F.col("payload_bytes"))).alias("bytes"),
            total(F.when(is_message, F.col("recipients"))).alias("recipients"),
            count_where(is_message & (role == Role.REQUEST)).alias("requests"),
            count_where(is_message & (role == Role.REPLY)).alias("replies"),
            count_where(kind == Kind.SUBSCRIBE).alias("subscriptions"),
            total(F.when(kind == Kind.DENIAL, F.coalesce("lost", F.lit(1)))).alias("denials"),
            total(F.when(kind == Kind.LOSS, F.col("lost"))).alias("lost"),
        )
    )
    return counted.select("date", "hour", *USERS.names)


def losses(records: DataFrame) -> DataFrame:
    """Return losses by minute and cause."""
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
    return (
        folded.groupBy(*HOURLY, *_LOSSES_KEYS)
        .agg(*(F.sum(name).alias(name) for name in _LOSSES_SUMS))
        .select("date", "hour", *LOSSES.names)
    )


def security(records: DataFrame) -> DataFrame:
    """Return refusals by class, code, reason, user, unit and key."""
    code = F.col("code")
    counted = (
        of_kind(records, Kind.DENIAL)
        .withColumn("class", F.when(code.isin(*_DENIALS), "denial").when(code.isin(*_QUOTAS), "quota").otherwise("misbehaviour"))
        .groupBy(*HOURLY, *_SECURITY_KEYS)
        .agg(F.sum(F.coalesce("lost", F.lit(1))).alias("events"), F.min("ts").alias("first"), F.max("ts").alias("last"))
    )
    folded = fold(fold(counted, "key", "events"), "reason", "events")
    summed = folded.groupBy(*HOURLY, *_SECURITY_KEYS).agg(
        F.sum("events").alias("events"), F.min("first").alias("first"), F.max("last").alias("last")
    )
    return summed.withColumns({"first": moment("first"), "last": moment("last")}).select("date", "hour", *SECURITY.names)


def disconnects(records: DataFrame) -> DataFrame:
    """Return ended connections by user, unit, code and reason."""
    counted = (
        of_kind(records, Kind.DISCONNECT)
        .groupBy(*HOURLY, *_DISCONNECTS_KEYS)
        .agg(F.count("*").alias("disconnects"), total("lost").alias("abandoned"))
    )
    summed = (
        fold(counted, "reason", "disconnects")
        .groupBy(*HOURLY, *_DISCONNECTS_KEYS)
        .agg(*(F.sum(name).alias(name) for name in ("disconnects", "abandoned")))
    )
    return summed.select("date", "hour", *DISCONNECTS.names)


def relay(records: DataFrame) -> DataFrame:
    """Return attempts to forward calls to other hosts."""
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


def _only(condition: Column, value: Column) -> Column:
    """Return *value* where *condition* is true, else null."""
    return F.when(condition, value)
