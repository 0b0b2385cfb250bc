"""The table ``users``."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sbusd.archive.record.kinds import Kind, Role
from sbusd.archive.tables.schema import USERS
from sbusd.pipeline.measures.records import HOURLY, count_where, of_kind, total

_BUS = 0
"""The number of the bus itself among connections."""


def compute(records: DataFrame) -> DataFrame:
    """Return what each user and unit did."""
    kind, role = F.col("kind"), F.col("call_role")
    is_message = kind == Kind.MESSAGE
    acts = of_kind(records, Kind.MESSAGE, Kind.CONNECT, Kind.SUBSCRIBE, Kind.DENIAL, Kind.LOSS)
    counted = (
        acts.where(F.coalesce("conn", F.lit(-1)) != _BUS)
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
