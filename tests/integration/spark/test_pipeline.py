"""The tables that Spark makes are, row for row, those that plain Python makes of the same record, however it was delivered."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sbus_archive.pipeline.partials import portions
from sbus_archive.record.index import write_entry
from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import Row, RowKind
from sbus_archive.record.segments import RecordReader
from sbus_archive.tables.schema import TABLES, VERSION
from sbus_archive.tables.storage import read_tables
from tests.integration.spark.conftest import Configured
from tests.support.link_states import link_state, other_host
from tests.support.ports import answers_to_another_user, listening
from tests.support.records import NOON, message
from tests.support.spark import manifests, published
from tests.support.tallies import tables_of
from tests.support.traffic import GrowingRecord, deliver

pytestmark = pytest.mark.machine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sbus_archive.pipeline.progress import RunTotals


@pytest.fixture
def spark(configured: Configured) -> Iterator[SparkSession]:
    """Spark with several tasks for each table, as for a large record.

    Small runs are in test_small_runs.py, and the program with its own settings in test_ground_truth.py.
    """
    with configured({"spark.sql.shuffle.partitions": "2"}) as session:
        yield session


class Bench:
    """An archive, its tables, and the pipeline between them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.archive = folder / "archive"
        self.root = folder / "tables"
        (self.archive / "index").mkdir(parents=True)

    def run(self, *, rebuild: bool = False) -> RunTotals:
        """Run the pipeline once."""
        from sbus_archive.pipeline.lock import engine_lock
        from sbus_archive.pipeline.progress import Progress
        from sbus_archive.pipeline.run import PipelineRun

        self.root.mkdir(exist_ok=True)

        def start(*, is_small: bool) -> SparkSession:
            assert is_small
            return self.spark

        with engine_lock(self.spark, self.root):
            return PipelineRun(RecordReader(self.archive), self.root, Progress(is_quiet=True), start, rebuild=rebuild).run()

    def check(self, record: Mapping[str, list[Row]]) -> None:
        """Compare the tables with those of plain Python."""
        made = published(self.root)
        for name, lines in tables_of(record).items():
            assert made[name] == lines, name


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    """An empty archive, for tests of how Spark computes tables."""
    return Bench(spark, tmp_path)


@pytest.fixture
def small_bench(small_spark: SparkSession, tmp_path: Path) -> Bench:
    """An empty archive, for tests of which hours are computed from which segments: a small run takes a tenth of the time."""
    return Bench(small_spark, tmp_path)


def test_tables_are_those_of_plain_python(bench: Bench) -> None:
    record = {"alpha": GrowingRecord(1).fill(500), "007": GrowingRecord(2).fill(300)}
    assert all(tables_of(record).values())  # every table has something to compare
    for host, rows in record.items():
        deliver(bench.archive, host, rows)
    bench.run()
    bench.check(record)


def test_any_split_into_runs_gives_the_same_tables(small_bench: Bench) -> None:
    """Write-aheads of two hosts arrive in any order, those of an hour after it was made too; runs lie between."""
    record = {"alpha": GrowingRecord(3).fill(240), "beta": GrowingRecord(4).fill(120)}
    parts = [(host, rows[start : start + 60]) for host, rows in record.items() for start in range(0, len(rows), 60)]
    random.Random(5).shuffle(parts)
    for number, (host, rows) in enumerate(parts):
        deliver(small_bench.archive, host, rows)
        if number % 3 == 0:
            small_bench.run()
    deliver(small_bench.archive, *parts[0])  # again, as a recorder does that was killed after it had published
    small_bench.run()
    small_bench.check(record)
    assert not small_bench.run().tables  # nothing is left to do


def test_a_reply_in_the_next_hour_redoes_the_calls_of_this_one(small_bench: Bench) -> None:
    call: dict[str, Any] = {"call_id": 7, "call_cmd": "echo"}
    request = message(1, "rpc/echo", ts=NOON + HOUR_NS - 10**9)._replace(call_role="request", **call)
    reply = message(2, "!/conn/7/r", ts=NOON + HOUR_NS + 10**9)._replace(call_role="reply", **call)
    deliver(small_bench.archive, "alpha", [request])
    small_bench.run()
    assert [line[8:10] for line in published(small_bench.root)["calls"]] == [(1, 0)]
    deliver(small_bench.archive, "alpha", [reply])
    totals = small_bench.run()
    small_bench.check({"alpha": [request, reply]})
    assert totals.tables["calls"].hours == 2
    assert totals.tables["traffic"].hours == 1  # of the first hour nothing else was made again


def test_links_of_many_histories_are_those_of_plain_python(bench: Bench) -> None:
    """Restarts, hosts that come and go or are omitted, counters that shrink, invalid states and states of other users; in two runs."""
    record: dict[str, list[Row]] = {}
    for seed in range(12):
        growing, chance = GrowingRecord(seed), random.Random(seed)
        for ts in sorted(chance.choices(range(3 * HOUR_NS), k=75)):
            growing.add_state(chance, NOON + ts)
        record[f"h{seed}"] = growing.rows
    for part in (slice(0, None, 2), slice(1, None, 2)):
        for name in list(record)[part]:
            deliver(bench.archive, name, record[name])
        bench.run()
    bench.check(record)
    lines = published(bench.root)["links"]
    assert len(lines) > 1_000
    assert all(value is None or value >= 0 for line in lines for value in line[7:])


def test_a_state_in_the_next_hour_ends_a_difference_of_this_one(small_bench: Bench) -> None:
    def of(seq: int, ts: int, started: float, *hosts: dict[str, Any]) -> Row:
        payload = json.dumps(link_state(started=started, spooled_bytes=seq, hosts=hosts)).encode()
        return message(seq, "link/state", payload, ts=ts)._replace(uid=0)

    def made() -> list[tuple[Any, ...]]:
        names = ("hour", "peer", "alive_us", "messages", "lost", "spooled_max_bytes")
        found: dict[tuple[int, str], list[Any]] = {}
        for row in read_tables(small_bench.root).tables["links"].to_pylist():
            hour, peer, *values = (row[name] for name in names)
            known = found.setdefault((hour, peer), [0, 0, 0, None])
            known[:3] = [before + value for before, value in zip(known, values[:3], strict=False)]
            known[3] = max((spooled for spooled in (known[3], values[3]) if spooled is not None), default=None)
        return sorted((*key, *values) for key, values in found.items())

    begin, end = NOON // 10**9 + 3_590.5, NOON + HOUR_NS
    rows = [
        of(1, end - 5 * 10**9, begin, other_host("beta", messages=3, lost=1)),
        of(2, end + 5 * 10**9, begin, other_host("beta", messages=10, lost=1)),
        # Too long after the hour of the last one, and another start of the link.
        of(3, end + HOUR_NS + 601 * 10**9, begin, other_host("beta", messages=99)),
        of(4, end + HOUR_NS + 602 * 10**9, NOON / 1e9 + 2 * 3_600 + 601.5, other_host("beta", messages=7)),
    ]
    deliver(small_bench.archive, "alpha", rows[:1])
    small_bench.run()
    assert made() == [(12, "", 0, 0, 0, 1), (12, "beta", 0, 3, 1, None)]
    for row in rows[1:]:
        deliver(small_bench.archive, "alpha", [row])
    small_bench.run()
    assert made() == [
        (12, "", 10**7, 0, 0, 1),
        (12, "beta", 10**7, 10, 1, None),
        (13, "", 0, 0, 0, 2),
        (14, "", 0, 0, 0, 4),
        (14, "beta", 0, 7, 0, None),
    ]
    # The record has no row of this host in the hour in which its link started.
    late = [of(1, end + 5 * 10**9, begin, other_host("beta", messages=4))]
    deliver(small_bench.archive, "late", late)
    small_bench.run(rebuild=True)
    small_bench.check({"alpha": rows, "late": late})


def test_a_crowd_of_prefixes_shares_one_row(bench: Bench) -> None:
    """One user invents keys; the prefixes of others, which are used more, keep their rows."""
    crowd = [message(number + 10, f"invented/{number:04}/x") for number in range(1_010)]
    others = [message(number, "weather/wind") for number in range(1, 4)]
    deliver(bench.archive, "alpha", [*others, *crowd])
    bench.run()
    bench.check({"alpha": [*others, *crowd]})
    prefixes = [line[4] for line in published(bench.root)["traffic"]]
    assert {"weather/wind", "invented/0000", None} < set(prefixes)
    assert len(prefixes) == 1_001


def test_divided_hours_give_the_same_tables(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark adds up the rows of portions, and then chooses the values that keep rows of their own."""
    monkeypatch.setattr(portions, "PORTION_ROWS", 300)
    monkeypatch.setattr(portions, "CALLS_ROWS", 300)
    crowd = [message(number + 1_000, f"invented/{number:04}/x") for number in range(1_010)]
    record = {"alpha": [*GrowingRecord(6).fill(500), *crowd], "beta": GrowingRecord(7).fill(100)}
    for host, rows in record.items():
        for begin in range(0, len(rows), 150):
            deliver(bench.archive, host, rows[begin : begin + 150])
    bench.run()
    bench.check(record)


def test_a_crowd_of_other_hosts_shares_one_row(bench: Bench) -> None:
    hosts = [other_host(f"host-{number}", messages=number) for number in range(1_010)]
    payload = json.dumps(link_state(started=NOON / 1e9, hosts=hosts)).encode()
    rows = [message(1, "link/state", payload)._replace(uid=0)]
    deliver(bench.archive, "alpha", rows)
    bench.run()
    bench.check({"alpha": rows})
    peers = [line[6] for line in published(bench.root)["links"]]
    assert (len(peers), peers.count(""), peers.count(None)) == (1_002, 1, 1)


def test_tasks_send_only_what_can_be_among_the_first(spark: SparkSession) -> None:
    """Otherwise a user who invents keys could fill the task that ranks them."""
    from sbus_archive.pipeline.measures import fold
    from sbus_archive.pipeline.partials.source import ddl_of, partial_columns_of

    plan = fold(spark.createDataFrame([], ddl_of(partial_columns_of("traffic"))), "prefix", "messages")._jdf.queryExecution().toString()
    # Such a limit is in the plan twice: before the exchange, and after it.
    assert plan.split("== Physical Plan ==")[1].count("WindowGroupLimit") == 2, plan
    spark.catalog.clearCache()


def test_an_hour_whose_segments_are_gone_is_never_overwritten(small_bench: Bench) -> None:
    first, second = [message(1, "a/b")], [message(2, "c/d")]
    (entry,) = deliver(small_bench.archive, "alpha", first)
    small_bench.run()
    (small_bench.archive / entry.path).unlink()
    write_entry(small_bench.archive, replace(entry, removed_at=NOON, removed_because="retention"))
    deliver(small_bench.archive, "alpha", second)
    totals = small_bench.run()
    assert (totals.kept, totals.tables) == (1, {})
    small_bench.check({"alpha": first})
    (manifest,) = manifests(small_bench.root)
    assert [path.rsplit("/", 1)[1] for path in manifest.left_out] == ["00000000000000000002.parquet"]
    small_bench.run(rebuild=True)
    small_bench.check({"alpha": first})


def test_a_segment_that_arrives_after_its_entry_is_waited_for(small_bench: Bench) -> None:
    """As a copy of another host's archive does; until then the hour is made without it, and says so."""
    here, late = [message(1, "a/b")], [message(2, "c/d")]
    deliver(small_bench.archive, "alpha", here)
    (entry,) = deliver(small_bench.archive, "beta", late)
    path = small_bench.archive / entry.path
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    small_bench.run()
    small_bench.check({"alpha": here})
    (manifest,) = manifests(small_bench.root)
    assert manifest.absent == (entry.path,)
    path.write_bytes(whole)
    small_bench.run()
    small_bench.check({"alpha": here, "beta": late})
    (manifest,) = manifests(small_bench.root)
    assert manifest.absent == ()


@pytest.mark.parametrize("size", [0, 100])
def test_an_index_entry_that_is_repaired_is_read(small_bench: Bench, size: int) -> None:
    """Damaged, or half copied when the run began; the hour is made without its segment first, and says so."""
    here, other = [message(1, "a/b")], [message(2, "c/d")]
    deliver(small_bench.archive, "alpha", here)
    (entry,) = deliver(small_bench.archive, "beta", other)
    path = small_bench.archive / entry.name.index_path
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    for _ in range(2):
        assert small_bench.run().absent == 1
        small_bench.check({"alpha": here})
        (manifest,) = manifests(small_bench.root)
        assert manifest.absent == (str(entry.name.index_path),)
    path.write_bytes(whole)
    assert small_bench.run().absent == 0
    small_bench.check({"alpha": here, "beta": other})
    (manifest,) = manifests(small_bench.root)
    assert manifest.absent == ()


def test_tables_can_be_read_by_spark(small_bench: Bench) -> None:
    """Without classes of Delta Lake: the files of a version are those of a partitioned data set. A table without rows has no files."""
    from deltalake import DeltaTable

    deliver(small_bench.archive, "alpha", [message(1)])
    small_bench.run()
    with_rows = set()
    for table in TABLES:
        delta = DeltaTable(small_bench.root / table.name)
        if files := delta.file_uris():
            with_rows.add(table.name)
            read = small_bench.spark.read.option("basePath", str(small_bench.root / table.name)).parquet(*files)
            types = {**{column.name: column.type.value for column in table.columns}, "date": "date", "hour": "int"}
            assert {field.name: field.dataType.simpleString() for field in read.schema} == types
            assert read.count() > 0
    assert with_rows == {"traffic", "users", "flows"}


def test_other_users_get_nothing_from_the_ports_of_spark(spark: SparkSession) -> None:
    """Every user of the machine can connect to 127.0.0.1: the driver, block manager and gateway to Python must reject all of them."""
    jvm = spark._jvm
    assert jvm is not None
    ports = listening(jvm.java.lang.ProcessHandle.current().pid())
    assert {address for address, _ in ports} <= {"0100007F", "0000000000000000FFFF00000100007F"}
    said = [answers_to_another_user(port) for _, port in ports]
    by_spark = [request for request, _ in said if b"Sasl" in request]
    by_py4j = [command for _, command in said if command.startswith(b"!x") or b"Authentication" in command]
    assert (len(by_spark), len(by_py4j)) == (2, 1), said
    assert len(said) == 3


def test_untrusted_input_is_harmless(small_bench: Bench) -> None:
    """Keys as deep as a packet is long, numbers as large as 64 bits, text of any kind."""
    rows = [
        message(1)._replace(kind=RowKind.SUBSCRIBE.value, key="*/" * 2_000),
        message(2, "x/" * 2_000 + "y"),
        message(4, "rpc/x")._replace(call_role="request", call_id=-(2**63), call_exp=2**63 - 1, call_cmd="\x1b]0;x\x07"),
        message(5, "r")._replace(call_role="reply", call_id=-(2**63)),
        message(6)._replace(kind=RowKind.DENIAL.value, reason="<script>alert(1)</script>" * 100, code="E" * 1_000),
    ]
    deliver(small_bench.archive, "alpha", rows)
    (small_bench.archive / "index" / "2026-11-20T12.alpha.damaged.json").write_text('{"date":[]}')
    small_bench.run()
    small_bench.check({"alpha": rows})


def test_tables_of_another_archive_are_refused(small_bench: Bench, tmp_path: Path) -> None:
    from sbus_archive.pipeline.errors import PipelineError

    deliver(small_bench.archive, "alpha", [message(1)])
    small_bench.run()
    small_bench.archive = tmp_path / "other"
    deliver(small_bench.archive, "alpha", [message(2)])
    with pytest.raises(PipelineError, match=rf"were made from .*/archive, version {VERSION}\. Use --rebuild"):
        small_bench.run()
