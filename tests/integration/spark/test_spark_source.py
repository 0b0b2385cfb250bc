"""The Data Source ``sbus`` on a real Spark and a real bus: what is read is what was recorded or said, what is written arrives once."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sbus.items import Message
from sbus.protocol.keys import KeySpace
from sbus.sync.bus import Bus
from sbus_archive.record.layout import HOUR_NS
from sbus_archive.record.schema import Row, key_bytes
from tests.integration.spark.conftest import Configured
from tests.support.daemons import Daemon
from tests.support.records import NOON, message
from tests.support.spark import INTERPRETED, JAVA_OPTIONS, require_spark
from tests.support.traffic import GrowingRecord, deliver

pytestmark = pytest.mark.machine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TIMEOUT_SECONDS = 60


@pytest.fixture(scope="module")
def spark(configured: Configured) -> Iterator[SparkSession]:
    """A Spark of this process, which has found the Data Source by itself."""
    with configured({"spark.sql.shuffle.partitions": "1"}) as session:
        yield session


@pytest.fixture(scope="module")
def registered(spark: SparkSession) -> SparkSession:
    """The same, registered as a program does that brings it along."""
    from sbus_archive.pipeline.source.datasource import register

    register(spark)
    return spark


@pytest.fixture(scope="module")
def record() -> dict[str, list[Row]]:
    """What two hosts recorded in three hours."""
    return {"alpha": GrowingRecord(1).fill(200), "beta": GrowingRecord(2).fill(100)}


@pytest.fixture(scope="module")
def archive(record: dict[str, list[Row]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same on disk."""
    folder = tmp_path_factory.mktemp("archive")
    for host, rows in record.items():
        deliver(folder, host, rows)
    return folder


def test_spark_finds_it_and_reads_all_columns(spark: SparkSession, archive: Path, record: dict[str, list[Row]]) -> None:
    """Before anything has registered it: from the module ``pyspark_sbus`` alone."""
    found = spark.read.format("sbus").load(str(archive)).collect()
    expected = sorted(repr((host, *row)) for host, rows in record.items() for row in rows)
    assert sorted(repr((row["host"], *(row[name] for name in Row._fields))) for row in found) == expected
    for row in found:
        assert (row["ts"] - NOON) // HOUR_NS == row["hour"] - 12


FILTERS: list[tuple[str, Callable[[str, Row], bool]]] = [
    ("key = 'a/b'", lambda host, row: row.key == "a/b"),
    ("key > 'a/c' and key <= 'é/ü'", lambda host, row: row.key is not None and b"a/c" < row.key.encode() <= "é/ü".encode()),
    ("key like 'a/%' and kind = 'message'", lambda host, row: (row.key or "").startswith("a/") and row.kind == "message"),
    ("key is null and kind in ('denial', 'message')", lambda host, row: row.key is None and row.kind in ("denial", "message")),
    ("host = 'beta' and hour >= 13", lambda host, row: host == "beta" and row.ts >= NOON + HOUR_NS),
    ("uid <=> 1000 and call_failed", lambda host, row: row.uid == 1000 and bool(row.call_failed)),
    ("uid in (1001, null)", lambda host, row: row.uid == 1001),
    (f"ts < {NOON + HOUR_NS} and not (key = 'z')", lambda host, row: row.ts < NOON + HOUR_NS and row.key not in (None, "z")),
    ("date = '2026-11-21'", lambda host, row: False),
]


def test_filters_give_the_rows_that_they_say(registered: SparkSession, archive: Path, record: dict[str, list[Row]]) -> None:
    """Of one frame, which Spark plans once: also with Spark's setting for filters that are handed down, and in one query together."""
    registered.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = registered.read.format("sbus").load(str(archive))
    every = sum(map(len, record.values()))
    for text, holds in FILTERS:
        expected = sorted((host, row.seq) for host, rows in record.items() for row in rows if holds(host, row))
        assert sorted((row.host, row.seq) for row in frame.where(text).select("host", "seq").collect()) == expected, text
        assert frame.count() == every
    denials, messages = (sum(row.kind == kind for rows in record.values() for row in rows) for kind in ("denial", "message"))
    assert frame.where("kind = 'denial'").union(frame.where("kind = 'message'")).count() == denials + messages


def test_a_pattern_and_chosen_columns(registered: SparkSession, archive: Path, record: dict[str, list[Row]]) -> None:
    """The pattern is the bus's own, and a filter on folders leaves segments alone that cannot be read."""
    reader = registered.read.format("sbus").schema("hour int, seq bigint").option("key", "a/*")
    space = KeySpace(is_guarded=False)
    expected = sorted(
        row.seq for rows in record.values() for row in rows if row.key is not None and space.matches(b"a/*", key_bytes(row.key))
    )
    assert sorted(row.seq for row in reader.load(str(archive)).collect()) == expected
    chosen = (
        reader.option("host", "alpha").option("kind", "message,denial").option("since", "2026-11-20T13").option("until", "2026-11-20T14:30")
    )
    expected = [
        row.seq
        for row in record["alpha"]
        if row.kind in ("message", "denial")
        and NOON + HOUR_NS <= row.ts < NOON + HOUR_NS * 5 // 2
        and row.key is not None
        and space.matches(b"a/*", key_bytes(row.key))
    ]
    assert sorted(row.seq for row in chosen.load(str(archive)).collect()) == expected != []
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="column 'seq' has the type bigint, not int"):
        registered.read.format("sbus").schema("seq int").load(str(archive)).collect()
    with pytest.raises(PySparkException, match="unknown option 'hots'"):
        registered.read.format("sbus").option("hots", "x").load(str(archive)).collect()
    with pytest.raises(PySparkException, match="/etc: not an archive: no directory index"):
        registered.read.format("sbus").load("/etc").count()


def test_segments_that_an_option_leaves_out_are_not_opened(registered: SparkSession, tmp_path: Path) -> None:
    for hour in range(2):
        deliver(tmp_path, "alpha", [message(hour + 1, ts=NOON + hour * HOUR_NS)])
    (broken,) = tmp_path.glob("date=*/hour=13/host=alpha/*.parquet")
    broken.write_bytes(b"PAR1")
    frame = registered.read.format("sbus").load(str(tmp_path))
    assert registered.read.format("sbus").option("until", "2026-11-20T13:00").load(str(tmp_path)).count() == 1
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match=f"{broken}: damaged segment"):
        frame.count()


def test_a_damaged_index_entry_stops_a_query_unless_it_says_otherwise(registered: SparkSession, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    archive, checkpoint, rows = tmp_path / "archive", str(tmp_path / "checkpoint"), list[int]()
    deliver(archive, "alpha", [message(1)])
    (entry,) = deliver(archive, "beta", [message(2)])
    path = archive / entry.name.index_path
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    (archive / "index" / "x.json").write_text("{")
    with pytest.raises(PySparkException, match=f"{path}: "):
        registered.read.format("sbus").load(str(archive)).count()
    assert registered.read.format("sbus").option("unreadable", "skip").load(str(archive)).count() == 1

    def run() -> None:
        stream = registered.readStream.format("sbus").option("unreadable", "skip").load(str(archive)).select("seq").writeStream
        stream = stream.foreachBatch(lambda frame, _: rows.extend(row.seq for row in frame.collect()))
        _end(stream.trigger(availableNow=True).option("checkpointLocation", checkpoint).start())

    run()
    assert rows == [1]
    path.write_bytes(whole)
    run()
    assert rows == [1, 2]


@pytest.mark.parametrize(
    ("options", "folder", "says"),
    [
        ({"hots": "x"}, None, "unknown option 'hots'"),
        ({"since": "2026-11-20"}, None, "options host, kind, since and until are for archives only"),
        ({"maxRowsPerTrigger": "0"}, "/etc", "invalid option maxRowsPerTrigger '0'"),
        ({}, "/etc", "/etc: not an archive: no directory index"),
        ({}, "/nowhere", "/nowhere: not an archive: no such directory"),
    ],
)
def test_a_wrong_option_is_named(registered: SparkSession, tmp_path: Path, options: dict[str, str], folder: str | None, says: str) -> None:
    from pyspark.errors import PySparkException

    query = registered.readStream.format("sbus").options(**options).load(folder).writeStream.format("noop")
    with pytest.raises(PySparkException, match=says) as caught:
        _end(query.option("checkpointLocation", str(tmp_path)).start())
    assert "UnboundLocalError" not in str(caught.value)
    if folder is not None:
        with pytest.raises(PySparkException, match=says):
            registered.read.format("sbus").options(**options).load(folder).count()


def test_a_stream_reads_each_row_once_and_a_batch_again_as_it_was(registered: SparkSession, tmp_path: Path) -> None:
    """In batches of at most 70 rows; a host's older segment comes late; then Spark is made to repeat its last batch."""
    archive, checkpoint = tmp_path / "archive", tmp_path / "checkpoint"
    (archive / "index").mkdir(parents=True)
    alpha, beta = GrowingRecord(3).fill(120), GrowingRecord(4).fill(40)
    deliver(archive, "alpha", alpha)
    batches: dict[int, list[tuple[str, int]]] = {}

    def take(frame: DataFrame, number: int) -> None:
        batches[number] = sorted((row.host, row.seq) for row in frame.select("host", "seq").collect())

    def run() -> None:
        reader = registered.readStream.format("sbus").option("maxRowsPerTrigger", "70").option("until", "2026-11-20T14:59:59")
        stream = reader.load(str(archive))
        query = stream.writeStream.foreachBatch(take).trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start()
        _end(query)

    run()
    deliver(archive, "beta", beta)
    run()
    assert all(len(rows) <= 70 for rows in batches.values())
    found = sorted(row for rows in batches.values() for row in rows)
    until = NOON + 3 * HOUR_NS - 10**9
    assert found == sorted((host, row.seq) for host, rows in (("alpha", alpha), ("beta", beta)) for row in rows if row.ts < until)
    last = max(batches)
    before = batches.pop(last)
    _forget_commit(checkpoint, last)
    deliver(archive, "gamma", [message(1)])  # later messages are not in it
    run()
    assert batches[last] == before
    assert batches[last + 1] == [("gamma", 1)]


def test_the_live_bus(registered: SparkSession, bus: Daemon, tmp_path: Path) -> None:
    """What is published while the query runs is there; a query that comes back says that rows are missing."""
    rows: list[tuple[str, bytes | None]] = []

    def take(frame: DataFrame, _: int) -> None:
        rows.extend((row.kind, row.payload) for row in frame.select("kind", "payload").collect())

    def start() -> StreamingQuery:
        stream = registered.readStream.format("sbus").option("address", bus.path).option("key", "live/").load()
        return stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path)).start()

    with Bus.connect(bus.path) as publisher:

        def probed() -> bool:
            publisher.publish("live/x", b"probe", receipt=True)
            return any(payload for _, payload in rows)

        for life in range(2):
            query = start()
            try:
                _until(query, probed)
                publisher.publish("other/x", b"other")
                for number in range(50):
                    publisher.publish("live/x", b"%d-%d" % (life, number))
                last = b"%d-49" % life
                _until(query, lambda last=last: ("message", last) in rows)  # type: ignore[misc]
            finally:
                query.stop()
            said = [payload for kind, payload in rows if kind == "message" and payload != b"probe"]
            assert said == [b"%d-%d" % (life, number) for number in range(50)]
            assert sum(kind == "restart" for kind, _ in rows) == life
            rows.clear()


def test_rows_are_published_when_all_are_there(registered: SparkSession, bus: Daemon, tmp_path: Path) -> None:
    """Binary keys and text ones, nulls, and a batch that fails in one task publishes nothing; a token publishes once."""
    from pyspark.errors import PySparkException

    with Bus.connect(bus.path) as reader, reader.subscribe("out/") as messages:
        frame = registered.createDataFrame([("out/a", b"1"), (r"out/\xff", None)], "key string, payload binary")
        writer = frame.write.format("sbus").mode("append").option("address", bus.path)
        writer.save()
        assert _received(messages.receive, 2) == {(b"out/a", b"1"), (b"out/\xff", b"")}
        for _ in range(2):
            writer.option("token", "jobs/1").option("outbox", str(tmp_path)).save()
        assert _received(messages.receive, 2) == {(b"out/a", b"1"), (b"out/\xff", b"")}
        mixed = registered.createDataFrame([("out/b", "1"), (None, "2")], "key string, payload string").repartition(2)
        with pytest.raises(PySparkException, match="has no key"):
            mixed.write.format("sbus").mode("append").option("address", bus.path).save()
        with pytest.raises(PySparkException, match="EPERM"):
            frame.selectExpr("'!/event/x' as key", "payload").write.format("sbus").mode("append").option("address", bus.path).save()
        with pytest.raises(PySparkException, match="cannot be overwritten"):
            frame.write.format("sbus").mode("overwrite").option("address", bus.path).save()
        reader.ping()
        reader.publish("out/end")
        assert _received(messages.receive, 1) == {(b"out/end", b"")}  # nothing came between


def test_a_repeated_batch_is_published_once(registered: SparkSession, bus: Daemon, tmp_path: Path) -> None:
    """From an archive onto the bus; then Spark is made to repeat its last batch, and to forget that it is done."""
    archive, checkpoint = tmp_path / "archive", tmp_path / "checkpoint"
    deliver(archive, "alpha", [message(number, f"out/{number}", b"%d" % number) for number in range(1, 31)])

    def run() -> None:
        stream = registered.readStream.format("sbus").schema("key string, payload binary").option("maxRowsPerTrigger", "10")
        sink = stream.load(str(archive)).writeStream.format("sbus").option("address", bus.path)
        _end(sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start())

    with Bus.connect(bus.path) as reader, reader.subscribe("out/") as messages:
        run()
        assert _received(messages.receive, 30) == {(key_bytes(f"out/{number}"), b"%d" % number) for number in range(1, 31)}
        _forget_commit(checkpoint, 2)
        deliver(archive, "beta", [message(1, "out/new", b"new")])
        run()
        assert _received(messages.receive, 1) == {(b"out/new", b"new")}
        reader.publish("out/end")
        assert _received(messages.receive, 1) == {(b"out/end", b"")}
    assert [path.name for path in sorted((checkpoint / "sbus-outbox").iterdir())] == [".lock", "done.json"]
    assert list(json.loads((checkpoint / "sbus-outbox" / "done.json").read_bytes()).values()) == [3]


def _end(query: StreamingQuery) -> None:
    """Wait for the end of a query; raise what it failed of."""
    assert query.awaitTermination(TIMEOUT_SECONDS), "the query does not end"


def _until(query: StreamingQuery, condition: Callable[[], bool]) -> None:
    """Wait until *condition* holds while *query* runs."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "what the test waits for has not come"
        time.sleep(0.05)


def _forget_commit(checkpoint: Path, batch: int) -> None:
    """Make Spark repeat *batch*, its last, as after a kill before it could note its end."""
    (checkpoint / "commits" / str(batch)).unlink()
    (checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)
    shutil.rmtree(checkpoint / "commits" / "_tmp", ignore_errors=True)


def _received(receive: Callable[[float], object], count: int) -> set[tuple[bytes, bytes]]:
    """Return the next *count* messages, which are all different."""
    found = [receive(TIMEOUT_SECONDS) for _ in range(count)]
    messages = {(each.key_bytes, each.payload) for each in found if isinstance(each, Message)}
    assert len(messages) == count, found
    return messages


def test_a_program_of_an_environment_that_is_not_activated_finds_it(archive: Path, record: dict[str, list[Row]], tmp_path: Path) -> None:
    """The ``python3`` in its PATH has no package."""
    require_spark()
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from pyspark.sql import SparkSession\n"
        "from pyspark_sbus import use_this_python\n"
        "use_this_python()\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "print(spark.read.format('sbus').load(sys.argv[1]).count())\n"
        "spark.stop()\n"
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to("/bin/false")
    env = {name: os.environ[name] for name in ("JAVA_HOME", "HOME") if name in os.environ}
    env |= {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    env["PYSPARK_SUBMIT_ARGS"] = f"--driver-java-options {shlex.quote(JAVA_OPTIONS)} {INTERPRETED}"
    words = [sys.executable, str(program), str(archive)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{sum(map(len, record.values()))}\n"), done.stderr
