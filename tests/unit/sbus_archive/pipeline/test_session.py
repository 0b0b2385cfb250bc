"""Spark is started with the options of the user, and only with a Java that it runs on."""

from __future__ import annotations

import itertools
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sbus_archive.pipeline.errors import PipelineError
from sbus_archive.pipeline.session import (
    DIRECT_MEMORY,
    DRIVER_MEMORY,
    check_java,
    initial_partitions,
    is_local,
    is_on_cluster,
    prepare_environment,
)
from tests.support.spark import require_spark
from tools.stage import ROOT


def settings(environ: dict[str, str]) -> dict[str, str]:
    """Return the settings among the options for spark-submit; of two for one name the last, as Spark takes it."""
    words = shlex.split(environ["PYSPARK_SUBMIT_ARGS"])
    return dict(after.split("=", 1) for before, after in itertools.pairwise(words) if before == "--conf")


def test_memory_is_bounded_inside_and_outside_of_the_heap() -> None:
    environ: dict[str, str] = {}
    prepare_environment(environ, None)
    assert settings(environ)["spark.driver.memory"] == DRIVER_MEMORY
    assert f"-XX:MaxDirectMemorySize={DIRECT_MEMORY}" in settings(environ)["spark.driver.extraJavaOptions"].split()
    assert environ["MALLOC_ARENA_MAX"] == "2"
    assert environ["PYSPARK_PYTHON"] == sys.executable
    assert environ["PYSPARK_SUBMIT_ARGS"].endswith(" pyspark-shell")


def test_a_small_run_does_without_the_second_compiler() -> None:
    small: dict[str, str] = {"SBUS_PIPELINE_JAVA_OPTIONS": "-XX:TieredStopAtLevel=4"}
    large: dict[str, str] = {}
    prepare_environment(small, None, is_small=True)
    prepare_environment(large, None)
    assert settings(small)["spark.driver.extraJavaOptions"].endswith(" -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:TieredStopAtLevel=4")
    assert "TieredStopAtLevel" not in settings(large)["spark.driver.extraJavaOptions"]
    # Java does not start with two collectors.
    parallel = {"SBUS_PIPELINE_JAVA_OPTIONS": "-XX:+UseParallelGC"}
    prepare_environment(parallel, None, is_small=True)
    assert settings(parallel)["spark.driver.extraJavaOptions"].count("GC") == 1


def test_settings_of_the_user_override() -> None:
    mine = {"PYSPARK_SUBMIT_ARGS": "--conf spark.driver.memory=1g pyspark-shell", "MALLOC_ARENA_MAX": "8", "PYSPARK_PYTHON": "/opt/python"}
    environ = {**mine, "SBUS_PIPELINE_JAVA_OPTIONS": "-XX:MaxDirectMemorySize=1g -Xint"}
    prepare_environment(environ, None)
    assert settings(environ)["spark.driver.memory"] == "1g"
    # Java takes the last of two, too.
    assert settings(environ)["spark.driver.extraJavaOptions"].endswith(" -XX:MaxDirectMemorySize=1g -Xint")
    assert {name: environ[name] for name in ("MALLOC_ARENA_MAX", "PYSPARK_PYTHON")} == {
        "MALLOC_ARENA_MAX": "8",
        "PYSPARK_PYTHON": "/opt/python",
    }


def test_a_cluster_reaches_the_driver() -> None:
    here: dict[str, str] = {}
    there: dict[str, str] = {}
    local: dict[str, str] = {}
    prepare_environment(here, None)
    prepare_environment(there, "spark://alpha:7077")
    prepare_environment(local, "local[2]")
    assert "spark.driver.bindAddress" in settings(here)
    assert "spark.driver.bindAddress" in settings(local)
    assert "spark.driver.bindAddress" not in settings(there)
    for name in ("spark.authenticate", "spark.network.crypto.enabled"):
        assert (settings(here)[name], settings(local)[name], settings(there).get(name)) == ("true", "true", None)
    assert shlex.split(there["PYSPARK_SUBMIT_ARGS"])[:2] == ["--master", "spark://alpha:7077"]
    assert ("SPARK_LOCAL_IP" in here, "SPARK_LOCAL_IP" in there) == (True, False)


@pytest.mark.parametrize(
    ("master", "is_in_the_driver"),
    [(None, True), ("local", True), ("local[*]", True), ("local-cluster[2,1,1024]", False), ("spark://alpha:7077", False), ("yarn", False)],
)
def test_only_runs_in_the_driver_can_be_small(master: str | None, is_in_the_driver: bool) -> None:
    assert is_local(master) is is_in_the_driver


def test_a_cluster_shares_its_processors_among_tables() -> None:
    """Each table has a pool; on one machine tables are computed in turn."""
    for master, mode in (("spark://alpha:7077", "FAIR"), ("local-cluster[2,1,1024]", "FAIR"), ("local[2]", None), (None, None)):
        environ: dict[str, str] = {}
        prepare_environment(environ, master)
        assert settings(environ).get("spark.scheduler.mode") == mode


def test_under_spark_submit_the_run_may_be_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert [is_on_cluster(master) for master in (None, "local[2]", "yarn", "spark://alpha:7077")] == [False, False, True, True]
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert is_on_cluster(None)


def test_the_initial_number_of_partitions_grows_with_the_cluster() -> None:
    assert [initial_partitions(cores) for cores in (1, 2, 3, 500)] == [8, 8, 12, 2_000]


_ADVICE = r"Install Java 17 or later \(Debian: apt-get install default-jre-headless\), or set JAVA_HOME"


def make_java(folder: Path, says: str, status: int = 0) -> Path:
    """Make a program that tells its version as Java does."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n")
    java.chmod(0o755)
    return java


@pytest.mark.slow
@pytest.mark.parametrize(
    "says", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "25" 2025-09-16', 'java version "21.0.1" 2023-10-17 LTS']
)
def test_java_is_found_by_home_and_by_path(tmp_path: Path, says: str) -> None:
    java = make_java(tmp_path, says)
    assert check_java({"JAVA_HOME": str(tmp_path)}) == java
    assert check_java({"PATH": f"{tmp_path}:{java.parent}:/bin"}) == java


@pytest.mark.slow
@pytest.mark.parametrize(
    ("says", "status", "reason"),
    [
        ('java version "1.8.0_292"', 0, r"Spark needs Java 17 or later, but \S+ is Java 8"),
        ('openjdk version "11.0.2" 2019-01-15', 0, r"Spark needs Java 17 or later, but \S+ is Java 11"),
        ("hello", 0, r"\S+ does not print its version"),
        ('openjdk version "17.0.15"', 1, r"\S+ does not print its version"),
    ],
)
def test_an_unusable_java_is_named(tmp_path: Path, says: str, status: int, reason: str) -> None:
    make_java(tmp_path, says, status)
    with pytest.raises(PipelineError, match=rf"{reason}\. {_ADVICE}"):
        check_java({"JAVA_HOME": str(tmp_path)})


def test_no_java_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=rf"^Spark needs Java, but it is not installed\. {_ADVICE}$"):
        check_java({"PATH": str(tmp_path)})


def test_a_wrong_home_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=rf"JAVA_HOME is {tmp_path}, which has no bin/java\. {_ADVICE}"):
        check_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})


@pytest.mark.slow
def test_a_java_that_does_not_run_is_named(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("no program")
    java.chmod(0o755)
    with pytest.raises(PipelineError, match=rf"{java} does not run: Exec format error"):
        check_java({"JAVA_HOME": str(tmp_path)})


_JAVA_ENDS = """
import logging
from pyspark import accumulators
from sbus_archive.pipeline.session import silence_tracebacks
silence_tracebacks()
try:
    raise ConnectionResetError
except ConnectionResetError:
    accumulators.AccumulatorTCPServer.handle_error(None, None, None)
    accumulators.AccumulatorUnixServer.handle_error(None, None, None)
    logging.exception("as Py4J does")
"""


@pytest.mark.slow
def test_only_developers_see_tracebacks_of_spark_when_java_ends() -> None:
    require_spark()
    said = []
    for options in ([], ["-X", "dev", "-W", "ignore"]):
        done = subprocess.run([sys.executable, *options, "-c", _JAVA_ENDS], cwd=ROOT, capture_output=True, text=True, check=False)
        said.append(done.stderr)
    assert said[0] == ""
    assert "ConnectionResetError" in said[1]
