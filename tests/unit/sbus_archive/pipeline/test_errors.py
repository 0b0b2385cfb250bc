"""Of what Spark raises, the words that say what is wrong."""

from __future__ import annotations

import pytest

from sbus_archive.pipeline.errors import root_cause


class Java:
    """An exception of Java."""

    def __init__(self, words: str, cause: Java | None = None) -> None:
        self._words, self._cause = words, cause

    def toString(self) -> str:  # noqa: N802 - Java's names, here and below
        return self._words

    def getCause(self) -> Java | None:  # noqa: N802
        return self._cause


class GatewayError(Exception):
    """As py4j raises it."""

    def __init__(self, java: Java) -> None:
        super().__init__("An error occurred while calling o1.parquet.\n: java.lang.A: boxed\n\tat x")
        self.java_exception = java


class TranslatedError(Exception):
    """As PySpark does."""

    def __init__(self, java: Java) -> None:
        super().__init__("Job aborted\n\nJVM stacktrace:\n...")
        self._origin = java


FULL = "java.io.IOException: No space left on device"
STAGE = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task"
    " 0.0 in stage 3.0 (TID 4) (host executor driver): org.apache.spark.SparkException: Task failed.\n\tat a.B.c(B.java:1)\n"
    f"Caused by: org.apache.hadoop.fs.FSError: {FULL}\n\tat d\n\t... 9 more\nCaused by: {FULL}\n\tat e\n\t... 3 more\n\nDriver stacktrace:"
)
WORKER = (
    "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    '  File "x.py", line 1, in f\n    raise ValueError("no")\nValueError: no such row\n\n\tat org.apache.spark.api'
)


@pytest.mark.parametrize("make", [GatewayError, TranslatedError])
@pytest.mark.parametrize(
    ("java", "says"),
    [
        (Java("java.util.concurrent.ExecutionException: Boxed", Java(f"a.FSError: {FULL}", Java(FULL))), "No space left on device"),
        (Java("org.apache.spark.SparkException: Job aborted.", Java(STAGE)), "No space left on device"),
        (Java(WORKER), "ValueError: no such row"),
        (Java("java.lang.OutOfMemoryError: Java heap space"), "Java heap space"),
        (Java("java.lang.NullPointerException"), "java.lang.NullPointerException"),
    ],
)  # fmt: skip
def test_the_root_cause_is_reported(make: type[GatewayError] | type[TranslatedError], java: Java, says: str) -> None:
    assert root_cause(make(java)) == says


def test_a_circle_has_an_end() -> None:
    first = Java("a.B: round")
    first._cause = first
    assert root_cause(GatewayError(first)) == "round"


def test_errors_of_python_are_their_first_line() -> None:
    assert root_cause(RuntimeError("\n  one\ntwo")) == "one"
    assert root_cause(RuntimeError()) == "RuntimeError"


def test_without_its_java_machine_an_error_has_its_own_words() -> None:
    class Gone(Java):
        def getCause(self) -> Java | None:  # noqa: N802
            raise ConnectionRefusedError

    assert root_cause(GatewayError(Gone(""))) == "An error occurred while calling o1.parquet."


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "refused"), RuntimeError("PythonUtils does not exist in the JVM")])
def test_a_java_process_that_has_gone_is_named(error: Exception) -> None:
    assert root_cause(error).startswith("its Java process has ended, ")
