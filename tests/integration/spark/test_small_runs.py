"""A small run gives the same tables as plain Python, with few jobs of Spark: their number, not their size, is what a report waits for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sbus_archive.pipeline.partials import deliveries, portions, routes
from sbus_archive.pipeline.partials import rows as rows_of_segments
from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import Row
from sbus_archive.record.segments import RecordReader
from sbus_archive.tables.schema import TABLES
from tests.support.records import NOON, message
from tests.support.spark import published
from tests.support.tallies import tables_of
from tests.support.traffic import GrowingRecord, deliver

pytestmark = pytest.mark.machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_JOBS = len(TABLES)
"""Each table is one job with one task."""


@pytest.fixture
def spark(small_spark: SparkSession) -> SparkSession:
    """Spark as the program starts it for a small run."""
    return small_spark


@dataclass
class Work:
    """What Spark did: jobs, and their stages and tasks."""

    jobs: int
    stages: int
    tasks: int


def run(spark: SparkSession, folder: Path) -> Work:
    """Run the pipeline from the archive in *folder*; return the work of Spark."""
    from sbus_archive.pipeline.progress import Progress
    from sbus_archive.pipeline.run import PipelineRun

    starts = []

    def start(*, is_small: bool) -> SparkSession:
        starts.append(is_small)
        return spark

    tracker = spark.sparkContext.statusTracker()

    def jobs() -> set[int]:
        """Return the numbers of all jobs; Spark notes them in a thread of its own."""
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(60_000)
        return set(tracker.getJobIdsForGroup())

    before = jobs()
    PipelineRun(RecordReader(folder / "archive"), folder / "tables", Progress(is_quiet=True), start).run()
    assert starts in ([], [True])
    infos = [info for job in jobs() - before if (info := tracker.getJobInfo(job)) is not None]
    stages = [stage for info in infos for number in info.stageIds if (stage := tracker.getStageInfo(number)) is not None]
    return Work(len(infos), len(stages), sum(stage.numTasks for stage in stages))


def check(folder: Path, record: dict[str, list[Row]]) -> None:
    """Compare the tables with those of plain Python."""
    made = published(folder / "tables")
    for name, lines in tables_of(record).items():
        assert made[name] == lines, name


def test_the_work_for_all_tables_is_bounded(spark: SparkSession, tmp_path: Path) -> None:
    record = {"alpha": GrowingRecord(21).fill(500), "beta": GrowingRecord(22).fill(300)}
    assert all(tables_of(record).values())
    for host, rows in record.items():
        deliver(tmp_path / "archive", host, rows)
    work = run(spark, tmp_path)
    check(tmp_path, record)
    assert work.jobs <= MOST_JOBS
    # Only the table of links has exchanges.
    assert work.stages <= work.jobs + 6
    assert work.tasks <= work.jobs + 7
    assert run(spark, tmp_path) == Work(0, 0, 0)


def test_tables_that_cannot_have_rows_cost_nothing(spark: SparkSession, tmp_path: Path) -> None:
    rows = [message(number, "a/b") for number in range(1, 9)]
    deliver(tmp_path / "archive", "alpha", rows)
    # Traffic, users and flows.
    assert run(spark, tmp_path) == Work(3, 3, 3)
    check(tmp_path, {"alpha": rows})


def test_a_bus_without_subscribers_has_no_flows(spark: SparkSession, tmp_path: Path) -> None:
    rows = [message(number, "a/b")._replace(recipients=0) for number in range(1, 4)]
    deliver(tmp_path / "archive", "alpha", rows)
    run(spark, tmp_path)
    check(tmp_path, {"alpha": rows})
    assert published(tmp_path / "tables")["flows"] == []


def test_any_division_into_portions_gives_the_same_tables(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an hour with many segments, and of segments with many rows."""
    monkeypatch.setattr(portions, "PORTION_ROWS", 40)
    monkeypatch.setattr(portions, "CALLS_ROWS", 50)
    monkeypatch.setattr(rows_of_segments, "BATCH_ROWS", 7)
    monkeypatch.setattr(deliveries, "CANDIDATES", 3)
    monkeypatch.setattr(routes, "MAX_ROUTES_AT_ONCE", 2)
    record = {"alpha": GrowingRecord(24).fill(400), "beta": GrowingRecord(25).fill(200)}
    for host, rows in record.items():
        for begin in range(0, len(rows), 30):
            deliver(tmp_path / "archive", host, rows[begin : begin + 30])
    run(spark, tmp_path)
    check(tmp_path, record)


def test_a_share_without_calls_is_computed(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour with many rows has several shares, even if it has few calls."""
    monkeypatch.setattr(portions, "CALLS_ROWS", 1)
    call: dict[str, Any] = {"call_id": 7, "call_cmd": "echo"}
    rows = []
    for seq in (1, 3):
        rows.append(message(seq, "rpc/echo")._replace(call_role="request", **call))
        rows.append(message(seq + 1, "!/conn/7/r")._replace(call_role="reply", **call))
        deliver(tmp_path / "archive", "alpha", rows[-2:])
    run(spark, tmp_path)
    check(tmp_path, {"alpha": rows})


def test_the_subscriptions_of_a_user_are_bounded(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipients are not identified after the last subscription that counts."""
    record = {"alpha": GrowingRecord(31).fill(300), "beta": GrowingRecord(32).fill(200)}
    for host, rows in record.items():
        deliver(tmp_path / "archive", host, rows)
    monkeypatch.setattr(deliveries, "MAX_EVENTS", 3)
    run(spark, tmp_path)
    bounded, unbounded = published(tmp_path / "tables")["flows"], tables_of(record)["flows"]
    assert sum(line[8] for line in bounded) == sum(line[8] for line in unbounded)
    assert sum(line[8] for line in bounded if line[6] is None) > sum(line[8] for line in unbounded if line[6] is None)


def test_a_reply_and_a_state_in_the_next_hour_are_found(spark: SparkSession, tmp_path: Path) -> None:
    call: dict[str, Any] = {"call_id": 7, "call_cmd": "echo"}
    rows = [
        message(1, "rpc/echo", ts=NOON + HOUR_NS - 10**9)._replace(call_role="request", **call),
        message(2, "!/conn/7/r", ts=NOON + HOUR_NS + 10**9)._replace(call_role="reply", **call),
    ]
    for row in rows:
        deliver(tmp_path / "archive", "alpha", [row])
        run(spark, tmp_path)
    check(tmp_path, {"alpha": rows})
