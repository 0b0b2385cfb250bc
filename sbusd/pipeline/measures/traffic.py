"""The table ``traffic``."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sbusd.archive.record.kinds import Kind
from sbusd.archive.tables.schema import TRAFFIC
from sbusd.pipeline.measures.folding import fold
from sbusd.pipeline.measures.records import HOURLY, count_where, minute, of_kind, prefix, reached_nobody, total

_SUMS = ("messages", "bytes", "recipients", "queued", "discarded", "unheard")


def compute(records: DataFrame) -> DataFrame:
    """Return messages by minute, prefix and user."""
    messages = of_kind(records, Kind.MESSAGE)
    counted = messages.groupBy(*HOURLY, minute().alias("minute"), prefix().alias("prefix"), "uid").agg(
        F.count("*").alias("messages"),
        total("payload_bytes").alias("bytes"),
        total("recipients").alias("recipients"),
        total("queued").alias("queued"),
        total("discarded").alias("discarded"),
        count_where(reached_nobody()).alias("unheard"),
    )
    folded = fold(counted, "prefix", "messages")
    summed = folded.groupBy(*HOURLY, "minute", "prefix", "uid").agg(*(F.sum(name).alias(name) for name in _SUMS))
    return summed.select("date", "hour", *TRAFFIC.names)
