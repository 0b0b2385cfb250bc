"""Partial rows of the table ``flows``: deliveries by publisher and recipient.

For each message the record has the number of recipients, and the connections with a matching subscription that did not receive it. The
recipients are the connections with a matching subscription, without the latter; each hour of the record begins with all subscriptions. A
direct message can only have the recipient that it is for. If there are more candidates than recipients, the record is incomplete, and no
recipient is identified: the table does not guess. Recipients that no subscription explains have a row with null, so the deliveries of a
message always equal its recipients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from sbus_archive.pipeline.partials.portions import SUBSCRIPTION_KINDS, Portion
from sbus_archive.pipeline.partials.routes import KeyRoutes, RouteTable, SubscriptionEvent, subscriptions
from sbus_archive.pipeline.partials.rows import (
    compacted,
    encoded_array,
    heaviest,
    joined,
    no_rows,
    numbers,
    ones,
    only,
    prefixes,
    read_rows,
    summed,
    with_columns,
)
from sbus_archive.record.schema import RowKind
from sbus_archive.record.segments import RecordReader

MAX_EVENTS = 10_000
"""Maximum number of subscription rows of one user per host and hour; the earliest are used. Those of all users are in the memory of one
process, so a user who subscribes in a loop could exhaust it. The recipients of later ones are unknown, for that user only.
"""

CANDIDATES = 1 << 20
"""Maximum number of pairs of messages and connections in memory at once, or those of one message."""

_EVENT_COLUMNS = list(SubscriptionEvent._fields)
_FROM = ["uid", "unit"]
_TO = ["from_uid", "from_unit", "prefix", "to_uid", "to_unit"]


def flows(record: RecordReader, portion: Portion) -> Iterator[pa.Table]:
    """Yield deliveries by publisher, prefix and recipient."""
    wanted = (pc.field("kind") == RowKind.MESSAGE.value) & (pc.field("recipients") > 0)
    columns = ["key", "seq", *_FROM, "recipients", "missed", "to_conn", "payload_bytes"]
    table: RouteTable | None = None
    prefixes_kept = _heaviest_prefixes(record, portion, wanted) if portion.is_whole else None
    for rows in read_rows(record, portion.segments, columns, wanted):
        if table is None:
            table = _route_table(record, portion)
        for routes, messages in KeyRoutes.of_messages(table, rows):
            for groups in routes.divided(_grouped(messages, routes), CANDIDATES):
                yield _delivered(groups, routes, prefixes_kept)


def _heaviest_prefixes(record: RecordReader, portion: Portion, wanted: pc.Expression) -> pa.Array | None:
    """Return the prefixes that keep rows of their own, None if all do: a message with invented keys and many recipients has many rows.

    The deliveries of a message are its recipients, so they need not be identified for this.
    """
    sums = []
    for rows in read_rows(record, portion.segments, ["key", "recipients"], wanted):
        placed = with_columns(rows, {"prefix": prefixes(encoded_array(rows.column("key")))})
        sums.append(summed(placed, ["prefix"], ["recipients"]))
    return heaviest(joined(sums), "prefix", "recipients") if sums else None


def _route_table(record: RecordReader, portion: Portion) -> RouteTable:
    """Return the subscriptions of the hour and host, at most :data:`MAX_EVENTS` events of each user."""
    kept = no_rows(_EVENT_COLUMNS)
    for rows in read_rows(record, portion.others, _EVENT_COLUMNS, pc.field("kind").isin([kind.value for kind in SUBSCRIPTION_KINDS])):
        # A user who subscribes in a loop can have more text in an hour than an array can have.
        kept = _first_events(joined([kept, _first_events(rows)]))
    events = [SubscriptionEvent(**event) for event in kept.to_pylist()]
    counts = Counter(event.uid for event in events)
    ends = {event.uid: event.seq for event in events if counts[event.uid] == MAX_EVENTS}
    return RouteTable(subscriptions(sorted(events, key=lambda event: event.seq), ends))


def _first_events(events: pa.Table) -> pa.Table:
    """Return the first :data:`MAX_EVENTS` events of each user, ordered by user and position."""
    # A number for each user, also for events without one.
    users = encoded_array(pc.dictionary_encode(events.column("uid"), "encode")).indices
    by_user = with_columns(events, {"user": users}).sort_by([("user", "ascending"), ("seq", "ascending")])
    parts, begin = [by_user.slice(0, 0)], 0
    for counted in pc.value_counts(by_user.column("user")).to_pylist():
        parts.append(by_user.slice(begin, min(counted["counts"], MAX_EVENTS)))
        begin += counted["counts"]
    return joined(parts).select(_EVENT_COLUMNS)


def _grouped(rows: pa.Table, routes: KeyRoutes) -> pa.Table:
    """Return messages summed by equal recipients: most keys have the same subscribers for the whole hour."""
    missed = rows.column("missed")
    columns = {"number": numbers(rows), "span": routes.spans(rows), "messages": ones(rows), "missed_text": _text_of(missed)}
    keys = ["key", *_FROM, "recipients", "missed_text", "to_conn", "span"]
    groups = summed(with_columns(rows, columns), keys, ["messages", "payload_bytes"], least=["seq", "number"])
    return with_columns(groups, {"missed": missed.take(groups.column("number"))})


def _text_of(lists: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return *lists* as text, because lists cannot be keys."""
    if lists.null_count == len(lists):
        return pa.nulls(len(lists), pa.string())
    return pc.binary_join(lists.cast(pa.list_(pa.string())), ",")


def _delivered(groups: pa.Table, routes: KeyRoutes, prefixes_kept: pa.Array | None) -> pa.Table:
    """Return the deliveries of *groups* with their recipients. Only *prefixes_kept* keep rows of their own, if given."""
    groups = with_columns(groups, {"group": numbers(groups)})
    candidates = _without_missed(routes.candidates(groups), groups)
    sizes = summed(with_columns(candidates, {"size": ones(candidates)}), ["group"], ["size"])
    found = pc.fill_null(sizes.column("size").take(pc.index_in(groups.column("group"), sizes.column("group").combine_chunks())), 0)
    missed = groups.column("missed")
    # An empty list of missed connections means more than 64. More candidates than recipients: the record is incomplete.
    is_explained = pc.and_(
        pc.or_(pc.is_null(missed), pc.fill_null(pc.greater(pc.list_value_length(missed), 0), False)),
        pc.less_equal(found, groups.column("recipients")),
    )
    named = candidates.filter(is_explained.take(candidates.column("group")))
    rest = pc.subtract(groups.column("recipients").cast(pa.int64()), pc.if_else(is_explained, found, 0))
    to_others = pa.table(
        {
            "group": groups.column("group"),
            "to_uid": pa.nulls(groups.num_rows, pa.int64()),
            "to_unit": pa.nulls(groups.num_rows, pa.string()),
            "times": rest,
        }
    ).filter(pc.greater(rest, 0))
    to_named = with_columns(named.select(["group", "to_uid", "to_unit"]), {"times": ones(named)})
    received = pa.concat_tables([to_named, to_others]).combine_chunks()
    whose = groups.select(["key", *_FROM, "messages", "payload_bytes"]).take(received.column("group"))
    times = received.column("times")
    prefix = prefixes(encoded_array(whose.column("key")))
    deliveries = {
        "from_uid": whose.column("uid"),
        "from_unit": whose.column("unit"),
        "prefix": prefix if prefixes_kept is None else only(pa.chunked_array([prefix]), prefixes_kept),
        "to_uid": received.column("to_uid"),
        "to_unit": received.column("to_unit"),
        "deliveries": pc.multiply(whose.column("messages"), times),
        "bytes": pc.multiply(whose.column("payload_bytes"), times),
    }
    # Its dictionaries are those of all messages.
    return compacted(summed(pa.table(deliveries), _TO, ["deliveries", "bytes"]).combine_chunks())


def _without_missed(candidates: pa.Table, groups: pa.Table) -> pa.Table:
    """Return *candidates* without the connections that missed the messages of their group."""
    missing = groups.filter(pc.is_valid(groups.column("missed")))
    lists = missing.column("missed").combine_chunks()
    if not len(pc.list_flatten(lists)):
        return candidates
    missed = pa.table({"group": missing.column("group").take(pc.list_parent_indices(lists)), "conn": pc.list_flatten(lists)})
    return candidates.join(missed, ["group", "conn"], join_type="left anti", use_threads=False)
