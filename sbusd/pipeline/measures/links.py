"""The table ``links``: other hosts, from the differences of successive states that a link published.

The states of one start of a link are a series; its counters begin at zero when the link starts. A difference belongs to the hour in which
it begins, so the state that ends it can be in the next hour. A difference that would begin in a part of the record which does not exist is
not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import ModuleType

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf

import sbusd.pipeline.measures.link_states
from sbusd.archive.record.layout import HOUR_NS
from sbusd.archive.record.schema import Kind
from sbusd.archive.tables.hours import Hour
from sbusd.archive.tables.schema import LINK_SECONDS, LINKS
from sbusd.pipeline.measures.link_states import KEY, LINK, read_state
from sbusd.pipeline.measures.records import HOURLY, fold, gathered, of_kind

UNIT = "sbus-link.service"
"""Only root and this system unit publish states: a bus without the rules of the package lets every user do it."""

_SERIES = ("host", "realm", "link", "started")
_COUNTERS = ("messages", "bytes", "lost", "unknown_losses", "duplicates", "rejected", "disconnects", "dropped")
_SUMS = ("alive_us", *_COUNTERS, "states")
_ROW = ("minute", "realm", "link", "peer")

_ENTRY_TYPE = pa.struct([pa.field("name", pa.string()), pa.field("alive", pa.bool_()), *(pa.field(name, pa.int64()) for name in _COUNTERS)])
_STATE_TYPE = pa.struct(
    [
        *(pa.field(name, pa.string()) for name in ("realm", "link")),
        *(pa.field(name, pa.int64()) for name in ("started", "spooled", "omitted")),
        pa.field("entries", pa.list_(_ENTRY_TYPE)),
    ]
)
_ENTRY = f"struct<name:string,alive:boolean,{','.join(f'{name}:bigint' for name in _COUNTERS)}>"
_STATE = f"struct<realm:string,link:string,started:bigint,spooled:bigint,omitted:bigint,entries:array<{_ENTRY}>>"

# The module is sent to the executors by value, so the executors do not need this package.
_pickle_by_value: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
_pickle_by_value(sbusd.pipeline.measures.link_states)


def compute(records: DataFrame, following: DataFrame, hours: Iterable[tuple[Hour, str]]) -> DataFrame:
    """Return the rows of *hours* of hosts, whose states are in *records*. A state that ends a difference can be in *following* too."""
    chosen = [(hour.start, host) for hour, host in hours]
    own = _states(records)
    differences = _differences(
        gathered(own.unionByName(_states(following))), records.sparkSession.createDataFrame(chosen, "start bigint, host string")
    )
    rows = gathered(differences.unionByName(_samples(own)))
    # The link itself is not one of the ranked hosts.
    ranked = fold(rows.withColumn("other", F.when(F.col("peer") != LINK, F.col("peer"))), "other", "messages")
    folded = ranked.withColumn("peer", F.when(F.col("peer") == LINK, F.col("peer")).otherwise(F.col("other")))
    summed = folded.groupBy(*HOURLY, *_ROW).agg(
        *(F.sum(name).alias(name) for name in _SUMS), F.max("spooled_max_bytes").alias("spooled_max_bytes")
    )
    return summed.select("date", "hour", *LINKS.names)


def _states(records: DataFrame) -> DataFrame:
    """Return the valid states of links: one row each, ``entries`` has the link itself and the other hosts."""
    is_trusted = (F.col("uid") == 0) | (F.col("unit") == UNIT)
    rows = of_kind(records, Kind.MESSAGE).where((F.col("key") == KEY) & is_trusted & F.col("vouched").isNull())
    read = rows.select(*HOURLY, "ts", "seq", _reader()("payload").alias("state"))
    valid = read.where(F.col("state").isNotNull()).select(*HOURLY, "ts", "seq", "state.*")
    # Otherwise a clock that was set back could place the same start in two hours.
    return valid.where(F.expr(f"ts div {HOUR_NS} >= started div {HOUR_NS}"))


def _samples(states: DataFrame) -> DataFrame:
    """Return what a state says about its own minute."""
    return states.select(
        *_placed("ts"),
        "host",
        "realm",
        "link",
        F.lit(LINK).alias("peer"),
        *(F.lit(0).cast("bigint").alias(name) for name in ("alive_us", *_COUNTERS)),
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
            *(_difference(name) for name in _COUNTERS),
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


def _reader() -> Callable[..., Column]:
    """Return a Spark function that reads the state in a payload; null if it has none."""

    def read(payloads: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for batch in payloads:
            states = [read_state(payload) for payload in batch.to_pylist()]
            plain = [state and {**state._asdict(), "entries": [entry._asdict() for entry in state.entries]} for state in states]
            yield pa.array(plain, _STATE_TYPE)

    udf: Callable[..., Callable[..., Column]] = arrow_udf
    return udf(read, _STATE)
