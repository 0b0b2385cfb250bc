"""An archive in an object store that fails now and then: Spark and the pipeline read all rows from it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sbus.protocol.keys import pattern_matches
from sbus_archive.record.schema import Row
from tests.support.object_stores import BUCKET, SECRET, FaultyProxy, ObjectServer
from tests.support.records import message
from tests.support.spark import INTERPRETED, JAVA_OPTIONS, published, require_spark
from tests.support.tallies import tables_of
from tests.support.traffic import GrowingRecord, deliver
from tools.stage import ROOT

pytestmark = pytest.mark.machine

RECORD = {"alpha": GrowingRecord(31).fill(150), "beta": GrowingRecord(32).fill(80)}
URL = f"s3://{BUCKET}/fleet/record"
_SECONDS = 400

_READER = """
import json, sys
from pyspark.sql import SparkSession
from sbus_archive.pipeline.session import spark_session

url, out = sys.argv[1:]
with spark_session("local[2]") as spark:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    once = spark.read.format("sbus").load(url)
    found = {"rows": sorted([row["host"], row["seq"]] for row in once.select("host", "seq").collect())}
    some = spark.read.format("sbus").option("key", "a/*").option("host", "beta").load(url)
    found["some"] = sorted([row["host"], row["seq"]] for row in some.select("host", "seq").collect())
    stream = spark.readStream.format("sbus").option("maxRowsPerTrigger", "100").load(url)
    query = (stream.select("host", "seq").writeStream.format("parquet").option("path", f"{out}/rows")
        .option("checkpointLocation", f"{out}/checkpoint").trigger(availableNow=True).start())
    query.awaitTermination()
    found["stream"] = sorted([row["host"], row["seq"]] for row in spark.read.parquet(f"{out}/rows").collect())
    for wrong in (url + "/nothing", "s3://no-such-bucket/x"):
        try:
            spark.read.format("sbus").load(wrong).count()
        except Exception as error:
            found.setdefault("errors", []).append(str(error))
print(json.dumps(found))
"""


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return what the programs need, and *variables*."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), "SBUS_PIPELINE_JAVA_OPTIONS": JAVA_OPTIONS, "PYSPARK_SUBMIT_ARGS": INTERPRETED, **variables}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive in a directory."""
    folder = tmp_path_factory.mktemp("local") / "archive"
    for host, rows in RECORD.items():
        for start in range(0, len(rows), 70):
            deliver(folder, host, rows[start : start + 70])
    return folder


@pytest.fixture(scope="module")
def server(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """A store with a copy of the archive."""
    with ObjectServer(tmp_path_factory.mktemp("server")) as made:
        copy(archive, made)
        yield made


def copy(archive: Path, server: ObjectServer) -> None:
    """Copy *archive* to the store."""
    store = server.store("fleet/record")
    for path in sorted(archive.rglob("*")):
        if path.is_file():
            with path.open("rb") as stream:
                store.put(str(path.relative_to(archive)), stream)


def numbers(host: str, rows: list[Row]) -> list[list[object]]:
    """Return host and number of *rows*, as the reader prints them."""
    return [[host, row.seq] for row in rows]


def test_spark_reads_an_object_store(server: ObjectServer, tmp_path: Path) -> None:
    import json

    require_spark()
    with FaultyProxy(server.port, seed=5, chance=0.08) as proxy:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", _READER, URL, str(tmp_path)],
            env=environment(proxy.environment()), capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=tmp_path,
        )  # fmt: skip
        assert proxy.made, proxy.requests
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    everything = sorted(each for host, rows in RECORD.items() for each in numbers(host, rows))
    assert found["rows"] == found["stream"] == everything
    assert found["some"] == [
        ["beta", row.seq] for row in RECORD["beta"] if row.key is not None and pattern_matches(b"a/*", row.key.encode())
    ]
    missing, bucket = found["errors"]
    assert f"{URL}/nothing: not an archive: no objects under index/" in missing
    assert "s3://no-such-bucket/x: not an archive" in bucket


def test_the_pipeline_makes_the_tables_of_an_object_store(server: ObjectServer, archive: Path, tmp_path: Path) -> None:
    require_spark()
    with FaultyProxy(server.port, seed=6, chance=0.05) as proxy:

        def run(source: str) -> subprocess.CompletedProcess[str]:
            command = [
                sys.executable,
                "-W",
                "error",
                "-m",
                "sbus_archive.pipeline",
                "--archive",
                source,
                "--tables",
                str(tmp_path / "tables"),
            ]
            return subprocess.run(
                command, env=environment(proxy.environment()), capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=tmp_path
            )

        def check(record: Mapping[str, list[Row]]) -> None:
            done = run(URL)
            assert done.returncode == 0, done.stderr
            assert SECRET not in done.stdout + done.stderr
            made = published(tmp_path / "tables")
            for name, lines in tables_of(record).items():
                assert made[name] == lines, name

        check(RECORD)
        assert proxy.made, proxy.requests
        assert "nothing new" in run(URL).stdout
        # The next segment arrives.
        deliver(archive, "beta", [message(100_000)])
        copy(archive, server)
        check({**RECORD, "beta": [*RECORD["beta"], message(100_000)]})
        other = run(str(archive))
        assert other.returncode == 1
        assert f"the tables were made from {URL}, version" in other.stderr


@pytest.mark.parametrize(
    ("archive", "says"),
    [
        ("s3://bucket/a/../b", "--archive: invalid name 'a/../b' in an object store"),
        ("s3://key:pass-word@bucket/a", "--archive: invalid location: a URL must not contain credentials"),
        ("ftp://bucket/a", "--archive: invalid location 'ftp://bucket/a': unknown scheme 'ftp'"),
        ("s3://bucket/a", "s3://bucket/a/index: cannot look up: "),
    ],
)
def test_the_pipeline_says_in_one_line_why_it_cannot_read_a_location(archive: str, says: str, tmp_path: Path) -> None:
    env = environment({"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": SECRET})
    command = [sys.executable, "-W", "error", "-m", "sbus_archive.pipeline", "--archive", archive, "--tables", str(tmp_path / "tables")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=tmp_path)
    assert done.returncode == 1
    *retries, line = done.stderr.splitlines()
    assert line.startswith(f"sbus-pipeline: {says}"), done.stderr
    assert all(each.startswith("sbus: retried to look up s3://bucket/a/index: ") for each in retries)
    assert "pass-word" not in done.stderr
    assert SECRET not in done.stderr
