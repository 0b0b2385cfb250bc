"""Slow calls of the live bus, by Spark: the same as in a plain model, wherever the batches are cut, and from a real bus."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sbusd.client import Bus
from sbusd.pipeline.live.minutes import MEASURES
from sbusd.pipeline.live.open_calls import MAX_OPEN_OF_USER, OpenCalls
from tests.integration.test_live import _PROGRAM, Job, alerts_of, environment, settle
from tests.support.daemons import StartDaemon
from tests.support.records import NOON
from tests.support.spark import JAVA_OPTIONS, require_spark

pytestmark = pytest.mark.machine

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
            continue  # without a reply
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


_SETTINGS = """
delay = "1s"
slow_call = "500ms"
[[thresholds]]
name = "slow"
measure = "slow"
by = "prefix"
raise_at = 2
"""

_SERVICE = """
import sys, time
from sbusd.client import Bus
with Bus.connect(sys.argv[1]) as bus:
    @bus.service("task/run")
    def run(request):
        time.sleep(float(request.data))
        return b"done"
    bus.serve(ready=lambda: print("ready", flush=True))
"""


def test_slow_calls_on_a_bus_raise_an_alert(daemon: StartDaemon, tmp_path: Path) -> None:
    require_spark()
    bus = daemon()
    listener, publisher = bus.client(), bus.client()
    listener.subscribe(b"alert/")
    job = Job(tmp_path, bus, _SETTINGS)
    command = [sys.executable, "-c", _SERVICE, bus.path]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as service, Bus.connect(bus.path) as caller:
        try:
            assert service.stdout is not None
            assert service.stdout.readline() == "ready\n"
            job.start()
            settle(job, publisher, "start")
            received: list[dict[str, object]] = []
            deadline = time.monotonic() + 300
            # Two slow calls in one minute, wherever it begins.
            while not received:
                assert time.monotonic() < deadline, job.errors()
                for pause in (b"0", b"0.7", b"0.7", b"0.7"):
                    assert caller.call("task/run", pause, timeout=60) == b"done"
                received = alerts_of(listener)
            (alert, *_) = received
            assert (alert["rule"], alert["subject"], alert["measure"], alert["state"]) == ("slow", "rpc/task", "slow", "raised")
            assert job.state.counts["calls_dropped"] == 0
            show = [*_PROGRAM, "--show", "--state", str(job.state_folder)]
            shown = subprocess.run(show, env=environment(), capture_output=True, text=True, check=True, timeout=300)
            (row,) = [line for line in shown.stdout.splitlines() if line.startswith("rpc/task ")]
            assert int(row.split()[-1]) >= 2
            assert max(map(len, shown.stdout.splitlines())) <= 80
        finally:
            service.kill()
            job.kill()
