"""What Spark is told before it starts: this project's settings, and behind them, so that they win, the user's."""

from __future__ import annotations

import itertools
import shlex
import sys

from sbusd.pipeline.session import DIRECT_MEMORY, DRIVER_MEMORY, prepare_environment


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


def test_what_the_user_has_set_wins() -> None:
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
