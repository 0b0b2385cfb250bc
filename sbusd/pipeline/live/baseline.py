"""The usual number of messages of each key prefix in an hour of the week, computed by Spark from the tables of sbus-pipeline(8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sbusd.archive.files import TablesError
from sbusd.archive.record.layout import HOUR_NS
from sbusd.archive.tables.hours import Hour
from sbusd.archive.tables.schema import TRAFFIC
from sbusd.archive.tables.storage import read_tables
from sbusd.config.live import Anomaly
from sbusd.pipeline.live.alerts import Usual

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WEEK_NS = 7 * 24 * HOUR_NS
_MINUTE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Baseline:
    """The usual numbers in ``hour``; ``problem`` says why there are none."""

    hour: Hour
    usual: dict[str, Usual]
    weeks: int
    problem: str = ""


def weeks_before(hour: Hour, weeks: int) -> list[Hour]:
    """Return the same hour of the week in each of the *weeks* before *hour*, the latest first."""
    return [Hour.at(hour.start - week * _WEEK_NS) for week in range(1, weeks + 1)]


def compute(spark: SparkSession, tables: Path, hour: Hour, host: str, settings: Anomaly) -> Baseline:
    """Return the baseline of *hour* for the rows of *host* in the tables under *tables*. A table that cannot be read is a ``problem``."""
    found: list[Hour] = []
    parts = []
    try:
        for each in weeks_before(hour, settings.weeks):
            snapshot = read_tables(tables, since=each, until=each, names={TRAFFIC.name})
            if each in snapshot.manifests:
                found.append(each)
                parts.append(snapshot.tables[TRAFFIC.name].select(["host", "minute", "prefix", "messages"]))
    except (TablesError, OSError) as error:
        return Baseline(hour, {}, 0, str(error))
    if len(found) < settings.min_weeks:
        problem = f"{tables}: tables of {len(found)} weeks for this hour of the week, but min_weeks is {settings.min_weeks}"
        return Baseline(hour, {}, len(found), problem)
    return Baseline(hour, usual_numbers(spark, pa.concat_tables(parts), found, host), len(found))


def usual_numbers(spark: SparkSession, traffic: pa.Table, hours: Iterable[Hour], host: str) -> dict[str, Usual]:
    """Return median and MAD of the messages per minute of each prefix of *host*; a minute of *hours* without a row counts as 0."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - PySpark is slow to import, and the type of an annotation elsewhere

    seconds = [hour.start // 10**9 + minute * _MINUTE_SECONDS for hour in hours for minute in range(60)]
    minutes = spark.createDataFrame(pa.table({"second": pa.array(seconds, pa.int64())}))
    counted = (
        spark.createDataFrame(traffic)
        .where((F.col("host") == host) & F.col("prefix").isNotNull())
        .groupBy("prefix", F.unix_seconds("minute").alias("second"))
        .agg(F.sum("messages").alias("messages"))
    )
    grid = counted.select("prefix").distinct().crossJoin(minutes).join(counted, ["prefix", "second"], "left")
    values = grid.select("prefix", F.coalesce("messages", F.lit(0)).alias("value"))
    medians = values.groupBy("prefix").agg(F.median("value").alias("median"))
    deviations = (
        values.join(medians, "prefix").groupBy("prefix", "median").agg(F.median(F.abs(F.col("value") - F.col("median"))).alias("mad"))
    )
    return {row["prefix"]: Usual(row["median"], row["mad"]) for row in deviations.collect()}
