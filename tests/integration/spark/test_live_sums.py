"""What the job of sbus-live computes with Spark: usual numbers and slow calls are those of a plain model, wherever batches are cut."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sbus_archive.pipeline.live.alerts import Usual
from sbus_archive.pipeline.live.baseline import compute, usual_numbers, weeks_before
from sbus_archive.pipeline.live.minutes import MEASURES, shortened
from sbus_archive.pipeline.live.open_calls import MAX_OPEN_OF_USER, OpenCalls
from sbus_archive.tables.hours import Hour
from sbus_programs.config.live import Anomaly
from tests.support.published_tables import publish_record
from tests.support.records import NOON, message

pytestmark = pytest.mark.machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 10**9
SLOW = MEASURES.index("slow")


Event = tuple[int, str, str, int, int, str]
"""Time, kind, key, user, number of the call and role."""


def events_of(chance: random.Random) -> tuple[list[Event], Counter[tuple[int, str, int]]]:
    """Return requests and replies in the order of their times, and how many replies are slow, by minute, prefix and caller."""
    events: list[Event] = []
    slow = Counter[tuple[int, str, int]]()
    for number in range(1, 201):
        begin, uid, cmd = NOON + number * SECOND // 2, 1000 + number % 3, chance.choice(["echo", "store/get"])
        events.append((begin, "message", f"rpc/{cmd}", uid, number, "request"))
        is_across = 114 <= number < 120  # from the first minute into the second one
        if not is_across and chance.random() < 0.1:
            continue  # without a reply
        end = begin + (3 * SECOND if is_across else chance.choice([SECOND // 10, SECOND - 1, SECOND, 3 * SECOND]))
        events.append((end, "message", f"!/conn/{uid}/r", 0, number, "reply"))
        if end - begin >= SECOND:
            slow[end // 60 // SECOND, f"rpc/{cmd.partition('/')[0]}", uid] += 1
    return sorted(events), slow


@pytest.mark.parametrize("seed", [1])
def test_slow_calls_are_those_of_a_plain_model(small_spark: SparkSession, seed: int) -> None:
    from sbus_archive.pipeline.live.calls import calls_in
    from sbus_archive.pipeline.live.job import summed

    chance = random.Random(seed)
    events, expected = events_of(chance)
    state, found = OpenCalls(), Counter[tuple[int, str | None, int | None]]()
    schema = (
        "ts bigint, kind string, key string, uid bigint, call_id bigint, call_role string,"
        " payload_bytes int, discarded int, lost bigint, duration bigint"
    )
    while events:
        size = chance.randrange(20, 90)
        batch, events = events[:size], events[size:]
        rows = small_spark.createDataFrame([(*each, 1, 0, None, None) for each in batch], schema)
        groups, _, has_calls = summed(rows)
        assert has_calls
        assert sum(group.counts[0] for group in groups) == len(batch)
        for group in state.fold(calls_in(rows, list(state.by_number), SECOND), SECOND):
            found[group.minute, group.prefix, group.uid] += group.counts[SLOW]
    assert found == expected
    assert state.dropped == 0


def test_a_batch_of_requests_without_replies_is_bounded(small_spark: SparkSession) -> None:
    from sbus_archive.pipeline.live.calls import calls_in

    schema = "ts bigint, key string, uid bigint, call_id bigint, call_role string"
    many = [(NOON + number, "rpc/echo", 66, number, "request") for number in range(1_000)]
    one = (NOON + 5_000, "rpc/echo", 1, 5_000, "request")
    calls = calls_in(small_spark.createDataFrame([*many, one], schema), [], SECOND)
    assert (len(calls.requests), calls.dropped) == (MAX_OPEN_OF_USER + 1, 1_000 - MAX_OPEN_OF_USER)
    assert {request.uid for request in calls.requests} == {1, 66}
    late = calls_in(small_spark.createDataFrame([(NOON + 9 * SECOND, "!/conn/1/r", 0, 5_000, "reply")], schema), [5_000, 7], SECOND)
    assert (late.requests, late.replies) == ((), ((5_000, NOON + 9 * SECOND),))


def test_the_baseline_agrees_with_a_plain_model(small_spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(7)
    hours = weeks_before(Hour("2026-11-20", 15), 4)
    assert hours[0] == Hour("2026-11-13", 15)
    rows, sums = [], Counter[tuple[str, int]]()
    for _ in range(500):
        second = chance.choice(hours).start // 10**9 + 60 * chance.randrange(60)
        prefix, host, count = chance.choice(["a/b", "c", None]), chance.choice(["alpha", "alpha", "beta"]), chance.randrange(1, 100)
        rows.append({"host": host, "minute": second * 10**6, "prefix": prefix, "messages": count})
        if prefix is not None and host == "alpha":
            sums[prefix, second] += count
    kinds: list[tuple[str, pa.DataType]] = [
        ("host", pa.string()),
        ("minute", pa.timestamp("us", "UTC")),
        ("prefix", pa.string()),
        ("messages", pa.int64()),
    ]
    traffic = pa.Table.from_pylist(rows, schema=pa.schema([pa.field(*each) for each in kinds]))
    long = "x" * 1000
    moments = [each.start + 60 * 10**9 * minute for each in reversed(weeks_before(Hour("2026-11-20", 12), 3)) for minute in range(40)]
    keys = [(moment, key) for moment in moments for key in ("a/b/c", "a/b/d", long, long)]
    record = [message(number, key, ts=moment + number) for number, (moment, key) in enumerate(keys)]
    tables = publish_record(tmp_path, {"alpha": record, "beta": record[:100]})
    found = usual_numbers(small_spark, traffic, hours, "alpha")
    of_tables = compute(small_spark, tables, Hour("2026-11-20", 12), "alpha", Anomaly(weeks=3, min_weeks=3))
    # In each week 40 minutes have 2 messages, and 20 have none.
    assert (of_tables.usual, of_tables.weeks, of_tables.problem) == ({"a/b": Usual(2, 0), shortened(long): Usual(2, 0)}, 3, "")
    assert set(found) == {"a/b", "c"}
    for prefix, usual in found.items():
        values = [sums[prefix, hour.start // 10**9 + 60 * minute] for hour in hours for minute in range(60)]
        median = statistics.median(values)
        assert usual == (median, statistics.median(abs(value - median) for value in values))
