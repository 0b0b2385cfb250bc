"""The program sbus-pipeline: killed at any moment and run again it gives the same tables; its words."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sbus_archive.tables.schema import TABLES
from tests.support.records import message
from tests.support.spark import INTERPRETED, JAVA_OPTIONS, WITHOUT_CODE_GENERATION, published, require_spark
from tests.support.tallies import tables_of
from tests.support.traffic import GrowingRecord, deliver
from tools.stage import ROOT

pytestmark = pytest.mark.machine

RECORD = {"alpha": GrowingRecord(11).fill(200), "beta": GrowingRecord(12).fill(100)}
_SECONDS = 400
"""A run takes ten; a busy machine may need more."""

_INTERPRETED = {"PYSPARK_SUBMIT_ARGS": INTERPRETED}
"""For programs that are killed or fail; test_cluster.py and test_ground_truth.py have the settings of the program."""

_OPEN = 0o022
"""An umask with which everybody can read what a program creates."""


def environment(**more: str) -> dict[str, str]:
    """Return what the program needs, and no more."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME") if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), "SBUS_PIPELINE_JAVA_OPTIONS": JAVA_OPTIONS, **more}


def command(folder: Path, *options: str) -> list[str]:
    """Return the program's command line for the archive and the tables in *folder*."""
    program = [sys.executable, "-W", "error", "-m", "sbus_archive.pipeline"]
    return [*program, "--archive", str(folder / "archive"), "--tables", str(folder / "tables"), *options]


def run(folder: Path, *options: str, umask: int = -1, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the program to its end; an *umask* of -1 is that of this process."""
    words, env = command(folder, *options), environment(**more)
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=folder, umask=umask)


@pytest.fixture
def delivered(tmp_path: Path) -> Path:
    """A folder with an archive."""
    for host, rows in RECORD.items():
        for start in range(0, len(rows), 70):
            deliver(tmp_path / "archive", host, rows[start : start + 70])
    return tmp_path


def kill_at_random(folder: Path, chance: random.Random, sign: str) -> bool:
    """Start a run and kill it, with or without its Spark, some time after the file *sign* is there; return whether it was killed."""
    with (folder / "stderr").open("w") as errors:
        process = subprocess.Popen(
            command(folder), env=environment(**_INTERPRETED), stdout=errors, stderr=errors, start_new_session=True, cwd=folder, umask=_OPEN
        )
    deadline = time.monotonic() + _SECONDS
    while process.poll() is None and not list((folder / "tables").glob(sign)):
        assert time.monotonic() < deadline, (folder / "stderr").read_text()
        time.sleep(0.01)
    time.sleep(chance.random() * 0.5)
    # With its whole group Spark goes at once; alone it leaves a Spark behind that still writes for a moment.
    if chance.random() < 0.5:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    return process.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("seed", [1])
def test_killed_anywhere_and_run_again_the_tables_are_the_same_and_closed_to_others(delivered: Path, seed: int) -> None:
    require_spark()
    chance, tables = random.Random(seed), delivered / "tables"
    tables.mkdir()
    tables.chmod(0o755)
    # What a run makes before its end, in this order: the first kill leaves files of Spark, the second tables of which some are new.
    killed = [kill_at_random(delivered, chance, sign) for sign in (".staging-*", "*/date=*")]
    assert sum(killed) >= 1
    deliver(delivered / "archive", "beta", [message(100_000)])
    done = run(delivered, umask=_OPEN, **_INTERPRETED)
    assert (done.returncode, done.stderr) == (0, "")
    # It says one line for each table, one for the whole, and nothing else.
    *names, records = (line.split()[0] for line in done.stdout.splitlines())
    assert (set(names), len(names)) == (set(published(delivered / "tables")), len(TABLES))
    assert int(records.replace(",", "")) > 0
    expected = tables_of({**RECORD, "beta": [*RECORD["beta"], message(100_000)]})
    made = published(delivered / "tables")
    for name, lines in expected.items():
        assert made[name] == lines, name
    assert not list(tables.glob(".staging*"))
    paths = [tables, *tables.rglob("*")]
    assert any(path.suffix == ".parquet" for path in paths)
    assert [path for path in paths if path.stat().st_mode & 0o027] == []


def test_spark_submit_runs_the_same_file(tmp_path: Path) -> None:
    require_spark()
    deliver(tmp_path / "archive", "alpha", [message(1)])
    submit = str(Path(sys.executable).with_name("spark-submit"))
    file = str(ROOT / "sbus_archive" / "pipeline" / "__main__.py")
    options = ["--archive", str(tmp_path / "archive"), "--tables", str(tmp_path / "tables"), "--quiet"]
    conf = [f"--conf={name}={value}" for name, value in {"spark.sql.shuffle.partitions": "1", **WITHOUT_CODE_GENERATION}.items()]
    env = environment(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
    done = subprocess.run(
        [submit, "--master", "local[1]", "--driver-java-options", JAVA_OPTIONS, *conf, file, *options],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert published(tmp_path / "tables")["traffic"] == tables_of({"alpha": [message(1)]})["traffic"]


def test_a_full_disk_is_reported_in_one_line(tmp_path: Path, needs_root: None) -> None:
    """What Spark fails of, and where; its hundred lines about itself are nowhere."""
    require_spark()
    deliver(tmp_path / "archive", "alpha", GrowingRecord(13).fill(2_000))
    tables = tmp_path / "tables"
    tables.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tables)], check=True)
    try:
        done = run(tmp_path, PYSPARK_SUBMIT_ARGS=INTERPRETED)
    finally:
        subprocess.run(["umount", "--lazy", str(tables)], check=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("sbus-pipeline: ")
    assert "No space left on device" in done.stderr
    assert str(tables) in done.stderr


def test_a_missing_java_is_reported_in_one_line_with_its_package(tmp_path: Path) -> None:
    deliver(tmp_path / "archive", "alpha", [message(1)])
    done = run(tmp_path, PATH="/nowhere", JAVA_HOME="")
    says = "Spark needs Java, but it is not installed. Install Java 17 or later (Debian: apt-get install default-jre-headless)"
    assert (done.returncode, done.stdout, done.stderr) == (78, "", f"sbus-pipeline: {says}, or set JAVA_HOME\n")


@pytest.mark.parametrize("name", ["PySpark", "PyArrow", "deltalake"])
def test_a_missing_package_is_reported_in_one_line(tmp_path: Path, name: str) -> None:
    require_spark()
    deliver(tmp_path / "archive", "alpha", [message(1)])
    (tmp_path / f"{name.lower()}.py").write_text("raise ImportError")
    done = run(tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.stderr == f"sbus-pipeline: {name} is not installed. Install it with: pip install 'sbusd[pipeline]'\n"
    assert done.returncode == 78


@pytest.mark.parametrize("location", ["s3a://x/y", "https://x/y", "hdfs://x/y"])
def test_an_invalid_location_is_reported(tmp_path: Path, location: str) -> None:
    deliver(tmp_path / "archive", "alpha", [message(1)])
    done = run(tmp_path, "--tables", location)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"sbus-pipeline: --tables: invalid location {location!r}: ")


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ((), "not an archive: no such directory"),
        (("archive",), "not an archive: no index"),
    ],
)
def test_without_an_archive_it_says_so(tmp_path: Path, made: tuple[str, ...], says: str) -> None:
    for name in made:
        (tmp_path / name).mkdir()
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    archive = tmp_path / "archive"
    assert done.stderr == f"sbus-pipeline: {archive}: {says}. Record one with: sbusctl record --archive {archive}\n"


def test_an_archive_without_segments_needs_no_spark(tmp_path: Path) -> None:
    (tmp_path / "archive" / "index").mkdir(parents=True)
    done = run(tmp_path, PATH="/nowhere", JAVA_HOME="")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nothing to compute: the archive has no segments yet. The recorder completes one every 15 minutes; ")


@pytest.mark.parametrize("master", ["banana", "spark://", "localhost", "local[]", "spark:7077"])
def test_an_invalid_master_is_reported_before_spark_starts(tmp_path: Path, master: str) -> None:
    done = run(tmp_path, "--master", master)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"invalid value for --master: {master!r} is not a Spark master. Use spark://HOST:PORT" in done.stderr
    assert "Exception" not in done.stderr


def test_a_table_path_that_is_a_file_is_reported(tmp_path: Path) -> None:
    deliver(tmp_path / "archive", "alpha", [message(1)])
    (tmp_path / "tables").touch()
    done = run(tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        f"sbus-pipeline: {tmp_path}/tables: not a directory. Name the directory of the tables with --tables\n",
    )


def test_root_is_refused_where_another_user_owns_the_tables(tmp_path: Path, needs_root: None) -> None:
    deliver(tmp_path / "archive", "alpha", [message(1)])
    (tmp_path / "tables").mkdir(mode=0o700)
    os.chown(tmp_path / "tables", 65534, 65534)
    done = run(tmp_path)
    assert done.returncode == 1
    assert f" -- sbus-pipeline --archive {tmp_path}/archive --tables /" in done.stderr
    assert list((tmp_path / "tables").iterdir()) == []


def test_a_second_run_names_the_running_one(tmp_path: Path) -> None:
    from sbus_archive.pipeline.lock import run_lock

    deliver(tmp_path / "archive", "alpha", [message(1)])
    (tmp_path / "tables").mkdir()
    with run_lock(tmp_path / "tables"):
        done = run(tmp_path)
    assert done.returncode == 1
    says = f"{tmp_path}/tables: in use by another sbus-pipeline, process {os.getpid()}. Wait until it has finished"
    assert done.stderr == f"sbus-pipeline: {says}\n"
