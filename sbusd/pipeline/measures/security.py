"""The table ``security``."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from sbusd.archive.record.kinds import Kind
from sbusd.archive.tables.schema import SECURITY
from sbusd.pipeline.measures.folding import fold
from sbusd.pipeline.measures.records import HOURLY, moment, of_kind
from sbusd.protocol.errors import ErrorCode

_DENIALS = (ErrorCode.EACCES.name, ErrorCode.EPERM.name)
_QUOTAS = (ErrorCode.EDQUOT.name, ErrorCode.EMFILE.name)
_KEYS = ("class", "code", "reason", "uid", "unit", "key")


def compute(records: DataFrame) -> DataFrame:
    """Return what was refused to whom."""
    code = F.col("code")
    counted = (
        of_kind(records, Kind.DENIAL)
        .withColumn("class", F.when(code.isin(*_DENIALS), "denial").when(code.isin(*_QUOTAS), "quota").otherwise("misbehaviour"))
        .groupBy(*HOURLY, *_KEYS)
        .agg(F.sum(F.coalesce("lost", F.lit(1))).alias("events"), F.min("ts").alias("first"), F.max("ts").alias("last"))
    )
    folded = fold(fold(counted, "key", "events"), "reason", "events")
    summed = folded.groupBy(*HOURLY, *_KEYS).agg(
        F.sum("events").alias("events"), F.min("first").alias("first"), F.max("last").alias("last")
    )
    return summed.withColumns({"first": moment("first"), "last": moment("last")}).select("date", "hour", *SECURITY.names)
