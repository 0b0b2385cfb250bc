"""The pipeline on clusters of this machine's processes: the same tables, no task with all rows, and executors without our packages."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sbus_archive.pipeline.session import PACKAGES
from sbus_archive.record.schema import Row
from tests.support.cluster import Cluster
from tests.support.event_log import log_options, stages_in
from tests.support.records import message
from tests.support.skewed_traffic import skewed_record
from tests.support.skips import require
from tests.support.spark import JAVA_OPTIONS, manifests, published, require_spark
from tests.support.tallies import tables_of
from tests.support.traffic import deliver
from tools.stage import ROOT

pytestmark = pytest.mark.machine

_SECONDS = 600
"""A run takes a minute; a busy machine needs more."""

_SMALL_EXECUTORS = ["--conf", "spark.executor.memory=600m", "--conf", f"spark.executor.extraJavaOptions={JAVA_OPTIONS}"]
_SHARE = 0.75
"""Largest part of the rows of a stage that one task may read. With two processors and two hours, the smallest is a half."""

_MANY = 200
"""Rows of an exchange that is worth dividing; adaptive execution merges smaller ones."""

_SEGMENTS = 4
"""Number of write-ahead files for each host."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an archive of :func:`record`, of which each host has several segments, and a damaged one."""
    for host, rows in record().items():
        size = -(-len(rows) // _SEGMENTS)
        for start in range(0, len(rows), size):
            deliver(tmp_path / "archive", host, rows[start : start + size])
    (entry,) = deliver(tmp_path / "archive", "damaged", [message(1)])
    (tmp_path / "archive" / entry.path).write_bytes(b"PAR1")
    return tmp_path


def record() -> dict[str, list[Row]]:
    """Return a record with one key that has half of the messages, and one user with half of the connections."""
    return skewed_record(hosts=2, hours=2)


def check(folder: Path) -> None:
    """Compare the tables with those of plain Python; the damaged segment is named in its hour."""
    made = published(folder / "tables")
    for name, lines in tables_of(record()).items():
        assert made[name] == lines, name
    first, second = manifests(folder / "tables")
    (absent,) = first.absent
    assert (absent.split("/")[2], second.absent) == ("host=damaged", ())


def environment(**more: str) -> dict[str, str]:
    """Return the variables of the program and its Spark."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ}
    return {**kept, "SPARK_LOCAL_IP": "127.0.0.1", "SBUS_PIPELINE_JAVA_OPTIONS": JAVA_OPTIONS, **more}


def run(words: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=folder)


def test_no_task_handles_all_rows(folder: Path) -> None:
    """Neither the rows of the record, nor those of a hot key or user; all tables of the hours are computed at the same time."""
    require_spark()
    log = folder / "log"
    log.mkdir()
    options = [*log_options(log), *_SMALL_EXECUTORS, "--conf", "spark.sql.adaptive.coalescePartitions.minPartitionSize=1k"]
    env = environment(PYTHONPATH=str(ROOT), PYSPARK_SUBMIT_ARGS=shlex.join([*options, "pyspark-shell"]))
    program = [sys.executable, "-m", "sbus_archive.pipeline", "--master", "local-cluster[2,1,1024]"]
    done = run([*program, "--archive", "archive", "--tables", "tables"], folder, env)
    assert done.returncode == 0, done.stderr
    # The path of the segment is that of the command line, although an executor with another working directory has read it.
    assert done.stderr.startswith("sbus-pipeline: skipped until it is available: archive/date=")
    assert "/host=damaged/" in done.stderr
    assert (done.stderr.count("\n"), done.stderr.count("checksum mismatch")) == (1, 1)
    check(folder)
    stages = stages_in(log)
    for pool in ("traffic", "users", "flows", "calls"):
        # The partial rows of each host and hour.
        read = max((stage.files for stage in stages.values() if stage.pool == pool), key=sum)
        assert len(read) == 4
        assert 0 < max(read) <= _SHARE * sum(read)
    exchanges = [stage for stage in stages.values() if sum(stage.exchanged) > _MANY]
    assert exchanges
    assert [stage.exchanged for stage in exchanges if max(stage.exchanged) > _SHARE * sum(stage.exchanged)] == []


@pytest.fixture(scope="module")
def python_without_package() -> tuple[str, dict[str, str]]:
    """An interpreter that has PySpark and the like, but not this package, and its variables."""
    require_spark()
    import pyspark

    python = str(Path(sys.executable).resolve())
    env = environment(PYTHONPATH=str(Path(pyspark.__file__).parents[1]), PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python)
    has_it = run([python, "-c", "import sbus"], Path("/"), env).returncode == 0
    require(not has_it, "needs an editable installation of sbusd", could_run=False)
    return python, env


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages, with the command of the manual."""
    target = tmp_path_factory.mktemp("package") / "sbus.zip"
    page = (ROOT / "man" / "sbus-pipeline.8").read_text()
    assert "\n$ python3 -m zipfile -c sbus.zip \\e\n    " + " ".join(f"$D/{name}" for name in PACKAGES) + "\n" in page
    subprocess.run([sys.executable, "-m", "zipfile", "-c", str(target), *(str(ROOT / name) for name in PACKAGES)], check=True)
    return target


_PROGRAM = """
import sys
from pyspark.sql import SparkSession
from sbus_archive.pipeline.source.datasource import register
spark = SparkSession.builder.getOrCreate()
register(spark)
print(spark.read.format("sbus").option("host", "host0").load(sys.argv[1]).count())
"""


def test_spark_submit_sends_the_package_to_a_cluster(
    folder: Path, python_without_package: tuple[str, dict[str, str]], package: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The program and a program that uses the Data Source, on a master and two workers."""
    _, env = python_without_package
    submit = str(Path(sys.executable).with_name("spark-submit"))
    with Cluster.started(tmp_path_factory.mktemp("cluster")) as cluster:
        words = [submit, "--master", cluster.url, "--py-files", str(package), *_SMALL_EXECUTORS, "--driver-java-options", JAVA_OPTIONS]
        words += ["--conf", f"spark.executorEnv.PYTHONPATH={env['PYTHONPATH']}"]  # where pyarrow is
        file = str(ROOT / "sbus_archive" / "pipeline" / "__main__.py")
        done = run([*words, file, "--archive", str(folder / "archive"), "--tables", str(folder / "tables"), "--quiet"], folder, env)
        assert done.returncode == 0, done.stderr
        check(folder)
        (folder / "count.py").write_text(_PROGRAM)
        # One executor is enough.
        done = run([*words, "--conf", "spark.cores.max=1", "count.py", str(folder / "archive")], folder, env)
        assert (done.returncode, done.stdout) == (0, f"{len(record()['host0'])}\n"), done.stderr
        assert cluster.applications() == ["__main__.py", "count.py"]
