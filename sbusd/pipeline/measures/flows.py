"""The table ``flows``: deliveries by publisher and recipient.

For each message the record has the number of recipients, and the connections with a matching subscription that did not receive it. The
recipients are the connections with a matching subscription, without the latter; each hour of the record begins with all subscriptions. A
direct message can only have the recipient that it is for. If there are more candidates than recipients, the record is incomplete, and no
recipient is identified: the table does not guess. Recipients that no subscription explains have a row with null, so the deliveries of a
message always equal its recipients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf

import sbusd.archive.record.key_text
import sbusd.pipeline.measures.subscriptions
import sbusd.protocol.keys
from sbusd.archive.record.schema import Kind
from sbusd.archive.tables.schema import FLOWS
from sbusd.pipeline.measures.records import HOURLY, fold, gathered, is_single, of_kind, prefix, spread, stored, total
from sbusd.pipeline.measures.subscriptions import RouteTable, SubscriptionEvent, subscriptions

MAX_EVENTS = 10_000
"""Maximum number of subscription rows of one user per host and hour; the earliest are used. Those of all users are in the memory of one
process, so a user who subscribes in a loop could exhaust it. The recipients of later ones are unknown, for that user only.
"""

BUCKETS = 8
"""Number of tasks that match the keys of one host and hour. Each of them gets all its subscriptions."""

MAX_KEYS_HERE = 5_000
MAX_ROUTES_HERE = 100_000
"""Maximum number of keys, and of routes of all keys, that a small run matches in the driver's process. With more, they are matched in
batches by Python processes of Spark, as in other runs.
"""

_FROM = ("from_uid", "from_unit")
_DELIVERY = ("recipients", "missed", "to_conn")
"""Columns that identify the recipients of a message, with its subscriptions."""

_ROUTE = "struct<conn:bigint,to_uid:bigint,to_unit:string,since:bigint,until:bigint>"
_FOUND = f"struct<bounds:array<bigint>,routes:array<{_ROUTE}>>"
_ROUTE_FIELDS = [
    pa.field("conn", pa.int64()),
    pa.field("to_uid", pa.int64()),
    pa.field("to_unit", pa.string()),
    pa.field("since", pa.int64()),
    pa.field("until", pa.int64()),
]
_FOUND_TYPE = pa.struct([pa.field("bounds", pa.list_(pa.int64())), pa.field("routes", pa.list_(pa.struct(_ROUTE_FIELDS)))])

_CANDIDATES = """
    filter(coalesce(routes, array()), route ->
        at between route.since and route.until and not array_contains(coalesce(missed, array()), route.conn)
        and (to_conn is null or to_conn = route.conn))
"""
"""Connections that received the message, if the record is complete."""

_IS_EXPLAINED = "(missed is null or size(missed) > 0) and size(candidates) <= recipients"
"""An empty list of missed connections means more than 64. More candidates than recipients: the record is incomplete."""

_RECEIVERS = """
    concat(transform(named, route -> struct(route.to_uid as to_uid, route.to_unit as to_unit, 1 as times)),
           array(struct(cast(null as bigint) as to_uid, cast(null as string) as to_unit, recipients - size(named) as times)))
"""

HostHour = tuple[str, int, str]
_NO_ROUTES = RouteTable(())

_BUCKET = (*HOURLY, "bucket")
"""Columns that identify the task which matches a key."""

# These modules are sent to the executors by value, so the executors do not need this package.
_pickle_by_value: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
for _module in (sbusd.pipeline.measures.subscriptions, sbusd.protocol.keys, sbusd.archive.record.key_text):
    _pickle_by_value(_module)


def compute(records: DataFrame) -> DataFrame:
    """Return deliveries by publisher, prefix and recipient."""
    messages = of_kind(records, Kind.MESSAGE).select(
        *HOURLY, "key", "seq", F.col("uid").alias("from_uid"), F.col("unit").alias("from_unit"), *_DELIVERY, "payload_bytes"
    )
    heard = messages.where(F.col("recipients") > 0)
    # One row for each key of an hour, matched in batches: a key costs its depth and its recipients.
    keys = heard.where(F.col("key").isNotNull()).groupBy(*HOURLY, "key").agg(F.min("seq").alias("first"), F.max("seq").alias("last"))
    events = _subscription_events(records)
    routed = _routed_here(keys, events) if is_single(records.sparkSession) else None
    if routed is None:
        routed = stored(_routed(keys, events))
    named = _with_recipients(_group_messages(heard, routed), routed)
    flows = fold(named, "prefix", "deliveries")
    summed = flows.groupBy(*HOURLY, *_FROM, "prefix", "to_uid", "to_unit").agg(
        F.sum("deliveries").alias("deliveries"), F.sum("bytes").alias("bytes")
    )
    return summed.select("date", "hour", *FLOWS.names)


def _routed(keys: DataFrame, events: DataFrame) -> DataFrame:
    """Return the routes of *keys*, computed by Python processes of Spark: the keys of each host and hour in :data:`BUCKETS` tasks."""
    empty = {"last": "bigint", "kind": "string", "conn": "bigint", "uid": "bigint", "unit": "string", "number": "int"}
    buckets = F.explode(F.array(*map(F.lit, range(BUCKETS))))
    begun = events.select(*HOURLY, buckets.alias("bucket"), F.lit(False).alias("is_key"), *SubscriptionEvent._fields, "number")
    asked = keys.select(
        *HOURLY,
        F.expr(f"cast(pmod(xxhash64(key), {BUCKETS}) as int)").alias("bucket"),
        F.lit(True).alias("is_key"),
        F.col("first").alias("seq"),
        "key",
        "last",
        *(F.lit(None).cast(kind).alias(name) for name, kind in empty.items() if name != "last"),
    )
    together = gathered(asked.unionByName(begun.withColumn("last", F.lit(None).cast("bigint"))))
    # The subscriptions of a bucket come before its keys.
    placed = spread(together, *_BUCKET).sortWithinPartitions(*_BUCKET, "is_key", "seq")
    found = placed.select(
        *HOURLY, "key", "is_key", _router()(*_BUCKET, "is_key", *SubscriptionEvent._fields, "last", "number").alias("found")
    )
    return found.where("is_key").drop("is_key")


def _routed_here(keys: DataFrame, events: DataFrame) -> DataFrame | None:
    """Return the routes of *keys*, computed in this process, which is faster than starting others; None if there are too many."""
    tables = _route_tables(events)
    table = keys.limit(MAX_KEYS_HERE + 1).toArrow()
    if table.num_rows > MAX_KEYS_HERE:
        return None
    if not table.num_rows:
        # Spark cannot read Arrow columns without chunks.
        return keys.select(*HOURLY, "key", F.lit(None).cast(_FOUND).alias("found")).where("false")
    found: list[dict[str, Any]] = []
    routes = 0
    for row in table.to_pylist():
        place = (row["date"], row["hour"], row["host"])
        found.append(tables.get(place, _NO_ROUTES).between(row["key"], row["first"], row["last"]))
        routes += len(found[-1]["routes"])
        if routes > MAX_ROUTES_HERE:
            return None
    with_routes = table.select([*HOURLY, "key"]).append_column("found", pa.chunked_array([pa.array(found, _FOUND_TYPE)]))
    return gathered(keys.sparkSession.createDataFrame(with_routes, f"date string, hour int, host string, key string, found {_FOUND}"))


def _group_messages(heard: DataFrame, routed: DataFrame) -> DataFrame:
    """Return messages summed by equal recipients: most keys have the same subscribers for the whole hour."""
    # Most keys have none, so that Spark can usually broadcast the others instead of moving the messages.
    bounds = routed.select(*HOURLY, "key", F.col("found.bounds").alias("bounds")).where(F.size("bounds") > 0)
    placed = heard.join(bounds, [*HOURLY, "key"], "left")
    span = F.expr("size(filter(coalesce(bounds, array()), bound -> bound < seq))").alias("span")
    return placed.groupBy(*HOURLY, "key", *_FROM, *_DELIVERY, span).agg(
        F.count("*").alias("messages"), total("payload_bytes").alias("message_bytes"), F.min("seq").alias("at")
    )


def _with_recipients(alike: DataFrame, routed: DataFrame) -> DataFrame:
    """Return deliveries with their recipients."""
    routes = routed.select(*HOURLY, "key", F.col("found.routes").alias("routes"))
    judged = alike.join(routes, [*HOURLY, "key"], "left").withColumn("candidates", F.expr(_CANDIDATES))
    explained = judged.withColumn("named", F.expr(f"if({_IS_EXPLAINED}, candidates, array())"))
    received = explained.select(*HOURLY, *_FROM, prefix().alias("prefix"), "messages", "message_bytes", F.expr(f"inline({_RECEIVERS})"))
    return (
        received.where(F.col("times") > 0)
        .groupBy(*HOURLY, *_FROM, "prefix", "to_uid", "to_unit")
        .agg(F.sum(F.col("messages") * F.col("times")).alias("deliveries"), F.sum(F.col("message_bytes") * F.col("times")).alias("bytes"))
    )


def _subscription_events(records: DataFrame) -> DataFrame:
    """Return the rows that begin or end subscriptions, numbered by user, at most :data:`MAX_EVENTS` of each."""
    events = of_kind(records, Kind.STANDING, Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.DISCONNECT, Kind.RESTART)
    number = F.row_number().over(Window.partitionBy(*HOURLY, "uid").orderBy("seq"))
    return events.select(*HOURLY, *SubscriptionEvent._fields, number.alias("number")).where(F.col("number") <= MAX_EVENTS)


def _route_tables(numbered: DataFrame) -> dict[HostHour, RouteTable]:
    """Return the subscriptions of each hour and host, collected in this process."""
    found: dict[HostHour, list[SubscriptionEvent]] = {}
    ends: dict[HostHour, dict[int | None, int]] = {}
    for row in numbered.toArrow().to_pylist():
        place = (row["date"], row["hour"], row["host"])
        found.setdefault(place, []).append(SubscriptionEvent(*(row[name] for name in SubscriptionEvent._fields)))
        if row["number"] == MAX_EVENTS:
            ends.setdefault(place, {})[row["uid"]] = row["seq"]
    return {
        place: RouteTable(subscriptions(sorted(events, key=lambda event: event.seq), ends.get(place, {})))
        for place, events in found.items()
    }


def _router() -> Callable[..., Column]:
    """Return :func:`_matcher` as a Spark function."""
    # Spark detects a function of batches by its annotations, which its own type hints do not allow.
    udf: Callable[..., Any] = arrow_udf
    # Its result depends on the rows before: Spark must neither reorder them nor omit any of them.
    router: Callable[..., Column] = udf(_matcher(), _FOUND).asNondeterministic()
    return router


def _matcher() -> Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]:
    """Return a function that computes the routes of keys between their first and last message, and the positions where they change.

    The columns of its batches are date, hour, host, bucket, whether the row is a key or an event, the fields of
    :class:`SubscriptionEvent`, the position of the last message of a key, and the number of an event of its user. The events of a bucket
    come before its keys, both in the order of positions. The result for an event is null.
    """

    def routes(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        place: tuple[Any, ...] | None = None
        events: list[SubscriptionEvent] = []
        ends: dict[int | None, int] = {}
        table: RouteTable | None = None
        for batch in batches:
            found: list[dict[str, Any] | None] = []
            for date, hour, host, bucket, is_key, *event, last, number in zip(*(column.to_pylist() for column in batch), strict=True):
                if place != (date, hour, host, bucket):
                    place, events, ends, table = (date, hour, host, bucket), [], {}, None
                row = SubscriptionEvent(*event)
                if not is_key:
                    events.append(row)
                    if number == MAX_EVENTS:
                        ends[row.uid] = row.seq
                    found.append(None)
                    continue
                if table is None:
                    table, events = RouteTable(subscriptions(events, ends)), []
                found.append(table.between(row.key or "", row.seq, last))
            yield pa.array(found, _FOUND_TYPE)

    return routes
