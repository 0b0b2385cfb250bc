"""Java is found where Spark finds it, and what is wrong with it is one line that says what to install."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbusd.pipeline.errors import PipelineError
from sbusd.pipeline.java import check_java

_ADVICE = r"Install Java 17 or later \(Debian: apt-get install default-jre-headless\), or set JAVA_HOME"


def make_java(folder: Path, says: str, status: int = 0) -> Path:
    """Make a program that tells its version as Java does."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {status}\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    "says", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "25" 2025-09-16', 'java version "21.0.1" 2023-10-17 LTS']
)
def test_java_is_found_by_home_and_by_path(tmp_path: Path, says: str) -> None:
    java = make_java(tmp_path, says)
    assert check_java({"JAVA_HOME": str(tmp_path)}) == java
    assert check_java({"PATH": f"{tmp_path}:{java.parent}:/bin"}) == java


@pytest.mark.parametrize(
    ("says", "status", "reason"),
    [
        ('java version "1.8.0_292"', 0, r"Spark needs Java 17 or later, but \S+ is Java 8"),
        ('openjdk version "11.0.2" 2019-01-15', 0, r"Spark needs Java 17 or later, but \S+ is Java 11"),
        ("hello", 0, r"\S+ does not print its version"),
        ('openjdk version "17.0.15"', 1, r"\S+ does not print its version"),
    ],
)
def test_a_java_that_is_no_use_is_named(tmp_path: Path, says: str, status: int, reason: str) -> None:
    make_java(tmp_path, says, status)
    with pytest.raises(PipelineError, match=rf"{reason}\. {_ADVICE}"):
        check_java({"JAVA_HOME": str(tmp_path)})


def test_no_java_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=rf"^Spark needs Java, but it is not installed\. {_ADVICE}$"):
        check_java({"PATH": str(tmp_path)})


def test_a_wrong_home_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=rf"JAVA_HOME is {tmp_path}, which has no bin/java\. {_ADVICE}"):
        check_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})


def test_a_java_that_does_not_run_is_named(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("no program")
    java.chmod(0o755)
    with pytest.raises(PipelineError, match=rf"{java} does not run: Exec format error"):
        check_java({"JAVA_HOME": str(tmp_path)})
