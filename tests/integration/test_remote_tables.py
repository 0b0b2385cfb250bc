"""Tables in an object store: written by the processes of Spark, the same through kills, and runs without news that end with status 0."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbus_archive.storage import store as store_module
from sbus_archive.storage.location import RemotePath
from sbus_archive.tables.delta import open_table
from tests.support.cluster import Cluster
from tests.support.object_stores import BUCKET, ObjectServer, without_retries
from tests.support.object_stores import environment as store_environment
from tests.support.records import message
from tests.support.spark import INTERPRETED, JAVA_OPTIONS, published, require_spark
from tests.support.tallies import tables_of
from tests.support.traffic import GrowingRecord, deliver
from tools.stage import ROOT

pytestmark = pytest.mark.machine

RECORD = {"alpha": GrowingRecord(41).fill(150), "beta": GrowingRecord(42).fill(80)}
_SECONDS = 400


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    """An object store; this process is its client too."""
    require_spark()
    with ObjectServer(tmp_path_factory.mktemp("store")) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in store_environment(found.port).items():
            patch.setenv(name, value)
        store_module._client.cache_clear()
        yield found
    store_module._client.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an archive."""
    for host, rows in RECORD.items():
        for start in range(0, len(rows), 70):
            deliver(tmp_path / "archive", host, rows[start : start + 70])
    return tmp_path


def environment(server: ObjectServer, *options: str) -> dict[str, str]:
    """Return what the program needs, with *options* of spark-submit."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ}
    own = {
        "PYTHONPATH": str(ROOT),
        "SBUS_PIPELINE_JAVA_OPTIONS": JAVA_OPTIONS,
        "PYSPARK_SUBMIT_ARGS": f"{shlex.join(options)} {INTERPRETED}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return {**kept, **own, **store_environment(server.port)}


def command(folder: Path, location: RemotePath, *options: str) -> list[str]:
    """Return the command line of the program."""
    program = [sys.executable, "-W", "error", "-m", "sbus_archive.pipeline"]
    return [*program, "--archive", str(folder / "archive"), "--tables", str(location), *options]


def run(folder: Path, server: ObjectServer, location: RemotePath, *options: str, submit: tuple[str, ...] = ()) -> str:
    """Run the program to its end, which is a success; return its output."""
    done = subprocess.run(
        command(folder, location, *options),
        env=environment(server, *submit),
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
        cwd=folder,
    )
    assert (done.returncode, without_retries(done.stderr)) == (0, "")
    return done.stdout


def kill_at_random(folder: Path, server: ObjectServer, location: RemotePath, chance: random.Random, sign: str) -> bool:
    """Start a run and kill it some time after an object with *sign* in its name is there; return whether it was killed."""
    with subprocess.Popen(command(folder, location), env=environment(server), cwd=folder, start_new_session=True) as process:
        deadline = time.monotonic() + _SECONDS
        while process.poll() is None and not any(sign in name for name in server.contents(location.key)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(chance.random() * 0.5)
        # With its whole group Spark goes at once; alone it leaves a Spark behind that still writes for a moment.
        if chance.random() < 0.5:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        return process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("seed", [1])
def test_the_tables_are_the_same_through_kills_and_runs_without_news_succeed(folder: Path, server: ObjectServer, seed: int) -> None:
    """Killed when some tables exist, and when Spark has written objects; test_tables_concurrency.py kills writers at other moments."""
    chance, location = random.Random(seed), RemotePath("s3", BUCKET, f"tables-{seed}")
    killed = [kill_at_random(folder, server, location, chance, sign) for sign in ("hours/_delta_log", "part-")]
    assert sum(killed) >= 1
    run(folder, server, location)
    made = published(location)
    for name, lines in tables_of(RECORD).items():
        assert made[name] == lines, name
    assert not (folder / "tables").exists()
    # The process must also end: threads of clients must not call into an interpreter that has exited.
    assert [run(folder, server, location).split(" in ")[0] for _ in range(3)] == ["nothing new\n"] * 3


def test_the_executors_of_a_cluster_write_the_objects(folder: Path, server: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Executors have the project neither installed nor on their path. Then the tables are made again, with more, on this machine."""
    location = RemotePath("s3", BUCKET, "tables-cluster")
    memory = ("--conf", "spark.executor.memory=600m", "--conf", f"spark.executor.extraJavaOptions={JAVA_OPTIONS}")
    # Its workers pass the variables of this process, which are those of a client of the store, to the executors.
    with Cluster.started(tmp_path_factory.mktemp("cluster")) as cluster:
        run(folder, server, location, "--master", cluster.url, submit=memory)
        assert cluster.applications() == ["sbus-pipeline"]
    made = published(location)
    for name, lines in tables_of(RECORD).items():
        assert made[name] == lines, name
    deliver(folder / "archive", "beta", [message(100_000)])
    run(folder, server, location, "--rebuild")
    made = published(location)
    for name, lines in tables_of({**RECORD, "beta": [*RECORD["beta"], message(100_000)]}).items():
        assert made[name] == lines, name
    users = open_table(location, "users")
    assert users is not None
    assert len(users.file_uris()) == len({line[:2] for line in made["users"]})  # one file for each hour
