"""A program can let Spark use its own interpreter, as long as Spark does not run."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from pyspark import SparkContext

from pyspark_sbus import use_this_python
from sbus_archive.pipeline.errors import SourceError


def test_the_interpreter_of_the_program_is_used_unless_the_user_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    environ: dict[str, str] = {}
    monkeypatch.setattr("os.environ", environ)
    use_this_python()
    assert environ["PYSPARK_PYTHON"] == sys.executable
    environ["PYSPARK_PYTHON"] = "/opt/python"
    use_this_python()
    assert environ["PYSPARK_PYTHON"] == "/opt/python"


def test_another_interpreter_of_a_running_spark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", SimpleNamespace(pythonExec="python3"))
    monkeypatch.setattr("os.environ", {"PYSPARK_PYTHON": "/opt/my python"})
    with pytest.raises(SourceError, match=r"interpreter python3, not /opt/my python\. .*PYSPARK_PYTHON='/opt/my python'"):
        use_this_python()
    monkeypatch.setattr("os.environ", {"PYSPARK_PYTHON": "python3"})
    use_this_python()
