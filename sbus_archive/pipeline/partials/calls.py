"""Partial rows of the table ``calls``: each request with its first reply, also across the end of the hour, counted by latency bucket."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from sbus_archive.pipeline.partials.portions import Portion
from sbus_archive.pipeline.partials.rows import compacted, flag, joined, no_rows, numbers, ones, read_rows, summed, undeliverable
from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import Role, RowKind
from sbus_archive.record.segments import RecordReader
from sbus_archive.tables.schema import CALL_SECONDS, LATENCY_STEPS

PARTIES = ["cmd", "caller_uid", "caller_unit", "callee_uid", "callee_unit"]
SUMS = ["calls", "answered", "errors", "timeouts", "unanswered", "undelivered"]

_MIXER = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd number that distributes numbers of calls evenly among shares: 2**64 divided by the golden ratio, as Knuth recommends."""
_MIXED_BITS = 20
_STEP_BITS = LATENCY_STEPS.bit_length() - 1
_DELIVERIES = ["recipients", "discarded"]
_CALL_NS = CALL_SECONDS * 10**9


def calls(record: RecordReader, portion: Portion) -> Iterator[pa.Table]:
    """Yield calls by parties and latency bucket. Replies are in the hour, or in the next one."""
    columns = ["ts", "seq", "call_id", "uid", "unit"]
    # Of each table only what can be the first: a user can repeat one call without end.
    asked = [_first(rows, "seq", "ts") for rows in _parts(record, portion, Role.REQUEST, [*columns, "call_cmd", "call_exp", *_DELIVERIES])]
    if asked:
        requests = _first(joined(asked), "seq", "ts")
        columns.append("call_failed")
        found = [rows.take(_first_replies(requests, rows).drop_null()) for rows in _parts(record, portion, Role.REPLY, columns)]
        replies = joined([no_rows(columns), *found])
        yield _by_bucket(_classified(requests, replies.take(_first_replies(requests, replies))))


def _parts(record: RecordReader, portion: Portion, role: Role, columns: list[str]) -> Iterator[pa.Table]:
    """Yield the requests or the replies of the portion."""
    latest = portion.hour.start + HOUR_NS + _CALL_NS
    wanted = (pc.field("kind") == RowKind.MESSAGE.value) & (pc.field("call_role") == role.value) & pc.field("call_id").is_valid()
    segments = portion.segments if role is Role.REQUEST else (*portion.segments, *portion.others)
    for rows in read_rows(record, segments, columns, wanted & (pc.field("ts") <= latest)):
        if (shared := _shared(rows, portion)).num_rows:
            yield shared


def _shared(rows: pa.Table, portion: Portion) -> pa.Table:
    """Return those of *rows* whose call is in the share of *portion*."""
    if portion.shares == 1:
        return rows
    mixed = pc.shift_right(pc.multiply(rows.column("call_id"), _MIXER), 64 - _MIXED_BITS)
    return compacted(rows.filter(pc.equal(pc.bit_wise_and(mixed, portion.shares - 1), portion.share)).combine_chunks())


def _first(rows: pa.Table, *order: str) -> pa.Table:
    """Return the row of each ``call_id`` that is first by *order*."""
    ordered = rows.sort_by([("call_id", "ascending"), *((name, "ascending") for name in order)])
    ids = ordered.column("call_id").combine_chunks()
    is_new = pc.not_equal(ids.slice(1), ids.slice(0, max(0, len(ids) - 1)))
    return ordered.filter(pa.concat_arrays([pa.array([True] * min(1, len(ids)), pa.bool_()), is_new])).combine_chunks()


def _first_replies(requests: pa.Table, replies: pa.Table) -> pa.Array:
    """Return the number of the first reply to each request, or null."""
    asked = requests.select(["call_id", "seq", "ts"])
    given = pa.table({"call_id": replies.column("call_id"), "number": numbers(replies), **_renamed(replies, ["seq", "ts"])})
    pairs = asked.join(given, "call_id", join_type="inner", use_threads=False)
    waited = pc.subtract(pairs.column("reply_ts"), pairs.column("ts"))
    is_in_time = pc.and_(pc.greater_equal(waited, 0), pc.less_equal(waited, _CALL_NS))
    valid = pairs.filter(pc.and_(pc.greater(pairs.column("reply_seq"), pairs.column("seq")), is_in_time))
    first = _first(valid, "reply_seq", "reply_ts")
    places = pc.index_in(requests.column("call_id"), first.column("call_id").combine_chunks())
    return first.column("number").take(places).combine_chunks()


def _renamed(replies: pa.Table, names: list[str]) -> dict[str, pa.ChunkedArray]:
    """Return columns of *replies* under names that those of requests do not have."""
    return {f"reply_{name}": replies.column(name) for name in names}


def _classified(requests: pa.Table, replies: pa.Table) -> pa.Table:
    """Return one row for each of *requests* with its reply, a row of nulls if there is none: its outcome as zeros and ones, and its latency
    bucket."""
    waited = pc.subtract(replies.column("ts"), requests.column("ts"))
    has_reply = pc.is_valid(waited)
    # Doubles, because the time limit of a caller in nanoseconds may exceed 64 bits.
    limit = pc.multiply(requests.column("call_exp").cast(pa.float64(), safe=False), 1e9)
    is_late = pc.fill_null(pc.greater(waited.cast(pa.float64(), safe=False), limit), False)
    is_answered = pc.and_(has_reply, pc.invert(is_late))
    has_none = pc.invert(has_reply)
    latency = pc.divide(waited, 1000)
    return pa.table(
        {
            "cmd": requests.column("call_cmd"),
            "caller_uid": requests.column("uid"),
            "caller_unit": requests.column("unit"),
            "callee_uid": replies.column("uid"),
            "callee_unit": replies.column("unit"),
            "calls": ones(requests),
            "answered": flag(is_answered),
            "errors": flag(pc.and_(is_answered, pc.fill_null(replies.column("call_failed"), False))),
            "timeouts": flag(is_late),
            "unanswered": flag(has_none),
            "undelivered": flag(pc.and_(has_none, pc.equal(undeliverable(requests), 1))),
            "longest": latency,
            "bucket": buckets(latency),
        }
    )


def buckets(latency: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the bucket of each latency from 0 to 2**40 microseconds, as :func:`sbus_archive.tables.schema.bucket_of`."""
    # A double can tell the logarithms of such numbers from that of the next power of two.
    bits = pc.floor(pc.log2(pc.max_element_wise(latency, 1).cast(pa.float64(), safe=False))).cast(pa.int64())
    shift = pc.max_element_wise(pc.subtract(bits, _STEP_BITS), 0)
    return pc.if_else(pc.is_valid(latency), pc.add(pc.multiply(shift, LATENCY_STEPS), pc.shift_right(latency, shift)), None)


def _by_bucket(classified: pa.Table) -> pa.Table:
    """Return calls by parties and bucket: a hundredth of the rows."""
    return summed(classified, [*PARTIES, "bucket"], SUMS, most=["longest"])


def histograms(rows: pa.Table) -> pa.Table:
    """Return calls by parties, from calls by parties and bucket: ``latencies`` are the calls of each bucket, in order."""
    ordered = rows.sort_by([("bucket", "ascending")])
    lists_of = ("bucket", "calls")
    values = [*((name, "sum") for name in SUMS), ("longest", "max"), *((name, "list") for name in lists_of), ("bucket", "count")]
    found = ordered.group_by(PARTIES, use_threads=False).aggregate(values).combine_chunks()
    lists = {name: pc.list_flatten(found.column(f"{name}_list")).combine_chunks() for name in lists_of}
    # Calls without a reply have no bucket.
    has_bucket = pc.is_valid(lists["bucket"])
    entries = pa.StructArray.from_arrays([lists[name].filter(has_bucket) for name in lists], list(lists))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(found.column("bucket_count")).combine_chunks()])
    return pa.table(
        {
            **{name: found.column(name) for name in PARTIES},
            **{name: found.column(f"{name}_sum") for name in SUMS},
            "latency_max_us": found.column("longest_max"),
            "latencies": pa.ListArray.from_arrays(offsets.cast(pa.int32()), entries),
        }
    )
