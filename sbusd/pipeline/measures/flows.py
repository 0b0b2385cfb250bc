"""The table ``flows``: who sent to whom.

The record says of a message only how many connections it was for. Which ones follows from the subscriptions that stood when it was
routed; each hour's record begins with those that stand already. What they do not explain has a row with nobody's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf

import sbusd.pipeline.measures.patterns
import sbusd.pipeline.measures.subscriptions
import sbusd.protocol.keys
import sbusd.record.keytext
from sbusd.pipeline.measures.folding import fold
from sbusd.pipeline.measures.records import HOURLY, of_kind, prefix, total
from sbusd.pipeline.measures.subscriptions import Act, Routes, Subscription, subscriptions
from sbusd.record.kinds import Kind
from sbusd.tables.schema import FLOWS

ACTS = 10_000
"""Rows about subscriptions of one user in a host's hour that are looked at, the earliest ones. They are gathered in one process; without
a bound a user who subscribes in a loop would use up its memory. Whom later ones brought messages has no name, for that user alone."""

_FROM = ("from_uid", "from_unit", "prefix")
_TO = ("to_uid", "to_unit")
_ROUTE = "array<struct<to_uid:bigint,to_unit:string,since:bigint,until:bigint>>"
_ROUTE_TYPE = pa.list_(
    pa.struct(
        [pa.field("to_uid", pa.int64()), pa.field("to_unit", pa.string()), pa.field("since", pa.int64()), pa.field("until", pa.int64())]
    )
)

HostHour = tuple[str, int, str]

# What the executors run travels to them by its code, so that none needs this project installed.
_ship_code: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
for _module in (sbusd.pipeline.measures.patterns, sbusd.pipeline.measures.subscriptions, sbusd.protocol.keys, sbusd.record.keytext):
    _ship_code(_module)


def compute(records: DataFrame) -> DataFrame:
    """Return deliveries by sender, prefix and recipient."""
    messages = of_kind(records, Kind.MESSAGE).select(
        *HOURLY, "key", "seq", F.col("uid").alias("from_uid"), F.col("unit").alias("from_unit"), "recipients", "payload_bytes"
    )
    heard = messages.where((F.col("recipients") > 0) & F.col("key").isNotNull())
    # A row for each key of an hour, in batches: each costs the depth of the key and its recipients.
    keys = heard.select(*HOURLY, "key").distinct()
    routes = keys.select(*HOURLY, "key", F.inline(_router(_subscriptions(records))(*HOURLY, "key")))
    named = (
        heard.join(routes, [*HOURLY, "key"])
        .where(F.col("seq").between(F.col("since"), F.col("until")))
        .groupBy(*HOURLY, "from_uid", "from_unit", prefix().alias("prefix"), *_TO)
        .agg(F.count("*").alias("deliveries"), total("payload_bytes").alias("bytes"))
    )
    flows = fold(_with_unnamed(heard, named), "prefix", "deliveries")
    summed = flows.groupBy(*HOURLY, *_FROM, *_TO).agg(F.sum("deliveries").alias("deliveries"), F.sum("bytes").alias("bytes"))
    return summed.select("date", "hour", *FLOWS.names)


def _with_unnamed(heard: DataFrame, named: DataFrame) -> DataFrame:
    """Return *named* and, for each sender and prefix, the deliveries that no subscription explains."""
    everything = heard.groupBy(*HOURLY, "from_uid", "from_unit", prefix().alias("prefix")).agg(
        total("recipients").alias("all_deliveries"),
        total(F.col("recipients") * F.coalesce("payload_bytes", F.lit(0)).cast("bigint")).alias("all_bytes"),
    )
    nobody = everything.select(
        *HOURLY,
        *_FROM,
        F.lit(None).cast("bigint").alias("to_uid"),
        F.lit(None).cast("string").alias("to_unit"),
        F.lit(0).cast("bigint").alias("deliveries"),
        F.lit(0).cast("bigint").alias("bytes"),
        "all_deliveries",
        "all_bytes",
    )
    both = named.withColumns({"all_deliveries": F.lit(0).cast("bigint"), "all_bytes": F.lit(0).cast("bigint")}).unionByName(nobody)
    sender = Window.partitionBy(*HOURLY, *_FROM)
    rest = F.greatest(F.col("all_deliveries") - F.sum("deliveries").over(sender), F.lit(0))
    rest_bytes = F.greatest(F.col("all_bytes") - F.sum("bytes").over(sender), F.lit(0))
    is_rest = F.col("all_deliveries") > 0
    counted = both.select(
        *HOURLY,
        *_FROM,
        *_TO,
        F.when(is_rest, rest).otherwise(F.col("deliveries")).alias("deliveries"),
        F.when(is_rest, rest_bytes).otherwise(F.col("bytes")).alias("bytes"),
    )
    return counted.where(F.col("deliveries") > 0)


def _subscriptions(records: DataFrame) -> dict[HostHour, list[Subscription]]:
    """Return the subscriptions of each hour and host."""
    acts = of_kind(records, Kind.STANDING, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.DISCONNECT, Kind.RESTART)
    number = F.row_number().over(Window.partitionBy(*HOURLY, "uid").orderBy("seq"))
    numbered = acts.select(*HOURLY, *Act._fields, number.alias("number")).where(F.col("number") <= ACTS)
    found: dict[HostHour, list[Act]] = {}
    ends: dict[HostHour, dict[int | None, int]] = {}
    for row in numbered.toArrow().to_pylist():
        place = (row["date"], row["hour"], row["host"])
        found.setdefault(place, []).append(Act(*(row[name] for name in Act._fields)))
        if row["number"] == ACTS:
            ends.setdefault(place, {})[row["uid"]] = row["seq"]
    return {place: list(subscriptions(sorted(acts, key=lambda act: act.seq), ends.get(place, {}))) for place, acts in found.items()}


def _router(stood: dict[HostHour, list[Subscription]]) -> Callable[..., Column]:
    """Return a function of Spark from date, hour, host and key to the key's routes."""

    def routes(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        made: dict[HostHour, Routes] = {}
        for dates, hours, hosts, keys in batches:
            found = []
            for date, hour, host, key in zip(dates.to_pylist(), hours.to_pylist(), hosts.to_pylist(), keys.to_pylist(), strict=True):
                place = (date, hour, host)
                if place not in made:
                    made[place] = Routes(stood.get(place, ()))
                found.append([dict(zip(("to_uid", "to_unit", "since", "until"), route, strict=True)) for route in made[place].of(key)])
            yield pa.array(found, _ROUTE_TYPE)

    # Spark tells by the annotations that this is a function of batches; its own types do not know that.
    udf: Callable[..., Callable[..., Column]] = arrow_udf
    return udf(routes, _ROUTE)
