"""The usual number of messages of each key prefix in an hour of the week, computed by Spark from the tables of sbus-pipeline(8)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sbus_archive.pipeline.live.alerts import Usual
from sbus_archive.pipeline.live.minutes import shortened
from sbus_archive.record.layout import HOUR_NS
from sbus_archive.storage.files import TablesError
from sbus_archive.tables.hours import Hour
from sbus_archive.tables.schema import TRAFFIC
from sbus_archive.tables.storage import read_tables
from sbus_programs.config.live import Anomaly

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


def hour_of(minute: int) -> Hour:
    """Return the hour of a minute, by its number since 1970."""
    return Hour.at(minute * 60 * 10**9)


@dataclass(slots=True)
class Baselines:
    """The baselines of the hours that are needed now: each is computed once."""

    compute: Callable[[Hour], Baseline]
    by_hour: dict[Hour, Baseline] = field(default_factory=dict)
    prefixes: frozenset[str] = frozenset()
    """The prefixes whose usual number is known."""
    _last: Baseline | None = None
    """The last one without a problem."""

    def prepare(self, hours: Iterable[Hour]) -> str:
        """Compute the baselines of *hours* that are missing, and drop the others; return the problem of a new one, if any."""
        wanted, problem = sorted(set(hours)), ""
        if wanted == [*self.by_hour]:
            return ""
        for hour in wanted:
            if hour not in self.by_hour:
                self.by_hour[hour] = found = self.compute(hour)
                problem = found.problem or problem
                if not found.problem:
                    self._last = found
        self.by_hour = {hour: self.by_hour[hour] for hour in wanted}
        known = [*self.by_hour.values(), *([] if self._last is None else [self._last])]
        self.prefixes = frozenset(prefix for each in known for prefix in each.usual)
        return problem

    def usual(self, hour: Hour, raised: Container[str]) -> Mapping[str, Usual] | None:
        """Return the usual numbers in *hour*; None if nothing is known.

        If there was a problem, the result is the last known numbers of the prefixes in *raised*: no other alert is raised by the numbers of
        another hour, and none is cleared only because tables are missing.
        """
        found = self.by_hour.get(hour)
        if found is not None and not found.problem:
            return found.usual
        if self._last is None:
            return None
        return {prefix: usual for prefix, usual in self._last.usual.items() if prefix in raised}


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
    return {shortened(row["prefix"]): Usual(row["median"], row["mad"]) for row in deviations.collect()}
