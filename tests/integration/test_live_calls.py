"""Slow calls of the live bus, by Spark: the same as in a plain model, wherever the batches are cut, and from a real bus."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from sbusd.pipeline.live.minutes import MEASURES
from sbusd.pipeline.live.open_calls import MAX_OPEN_OF_USER, OpenCalls
from tests.support.records import NOON
from tests.support.spark import JAVA_OPTIONS, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 10**9
SLOW = MEASURES.index("slow")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A small session."""
    require_spark()
    from sbusd.pipeline.session import spark_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SBUS_PIPELINE_JAVA_OPTIONS", JAVA_OPTIONS)
        with spark_session("local[1]", is_small=True) as session:
            yield session


Event = tuple[int, str, str, int, int, str]
"""Time, kind, key, user, number of the call and role."""


def events_of(chance: random.Random) -> tuple[list[Event], Counter[tuple[int, str, int]]]:
    """Return requests and replies in the order of their times, and how many replies are slow, by minute, prefix and caller."""
    events: list[Event] = []
    slow = Counter[tuple[int, str, int]]()
    for number in range(1, 201):
        begin, uid, cmd = NOON + number * SECOND // 2, 1000 + number % 3, chance.choice(["echo", "store/get"])
        events.append((begin, "message", f"rpc/{cmd}", uid, number, "request"))
        if chance.random() < 0.1:
            continue  # nobody replies
        end = begin + chance.choice([SECOND // 10, SECOND - 1, SECOND, 3 * SECOND])
        events.append((end, "message", f"!/conn/{uid}/r", 0, number, "reply"))
        if end - begin >= SECOND:
            slow[end // 60 // SECOND, f"rpc/{cmd.partition('/')[0]}", uid] += 1
    return sorted(events), slow


@pytest.mark.parametrize("seed", [1, 2])
def test_slow_calls_are_those_of_a_plain_model(spark: SparkSession, seed: int) -> None:
    from sbusd.pipeline.live.calls import calls_in
    from sbusd.pipeline.live.job import summed

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
        rows = spark.createDataFrame([(*each, 1, 0, None, None) for each in batch], schema)
        groups, _, has_calls = summed(rows)
        assert has_calls
        assert sum(group.counts[0] for group in groups) == len(batch)
        for group in state.fold(calls_in(rows, list(state.by_number), SECOND), SECOND):
            found[group.minute, group.prefix, group.uid] += group.counts[SLOW]
    assert found == expected
    assert state.dropped == 0


def test_a_batch_of_requests_without_replies_is_bounded(spark: SparkSession) -> None:
    from sbusd.pipeline.live.calls import calls_in

    schema = "ts bigint, key string, uid bigint, call_id bigint, call_role string"
    many = [(NOON + number, "rpc/echo", 66, number, "request") for number in range(1_000)]
    one = (NOON + 5_000, "rpc/echo", 1, 5_000, "request")
    calls = calls_in(spark.createDataFrame([*many, one], schema), [], SECOND)
    assert (len(calls.requests), calls.dropped) == (MAX_OPEN_OF_USER + 1, 1_000 - MAX_OPEN_OF_USER)
    assert {request.uid for request in calls.requests} == {1, 66}
    late = calls_in(spark.createDataFrame([(NOON + 9 * SECOND, "!/conn/1/r", 0, 5_000, "reply")], schema), [5_000, 7], SECOND)
    assert (late.requests, late.replies) == ((), ((5_000, NOON + 9 * SECOND),))
