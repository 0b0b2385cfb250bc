"""Errors of the pipeline and of the Data Source, in one line each, and the root cause of an exception of Spark."""

from __future__ import annotations

import re

from sbus.protocol.errors import SbusError

_DEEPEST = 100
"""Maximum depth of causes; prevents an endless loop."""

_CLASS = re.compile(r"(?:[a-z]\w*\.)+[A-Z][\w$]*: ")
_TRACEBACK = "Traceback (most recent call last):"
_CAUSED_BY = "Caused by: "
_JAVA_IS_GONE = "does not exist in the JVM"
"""How an error of Py4J ends when the Java process ends while it looks a class up."""


class PipelineError(SbusError):
    """The pipeline cannot run."""


class PermanentError(PipelineError):
    """The program cannot run before an administrator acts: a service manager must not restart it."""


class SourceError(SbusError, ValueError):
    """The Data Source cannot use an option, a schema or a row."""


class DamagedOutboxError(SourceError, PermanentError):
    """A file of an outbox is damaged."""


def root_cause(error: BaseException) -> str:
    """Return the message of the root cause of *error*: the deepest Java cause, or the exception of another process that it quotes."""
    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError" or str(error).endswith(_JAVA_IS_GONE):
        return f"its Java process has ended, perhaps because memory was exhausted, or it was killed ({error})"
    words = _java_words(error) or str(error)
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    causes = [line.removeprefix(_CAUSED_BY) for line in lines if line.startswith(_CAUSED_BY)]
    if causes:
        return _without_classes(causes[-1])
    if _TRACEBACK in words:
        # From a Python process of Spark: the exception follows the stack frames, which are indented.
        behind = words.rsplit(_TRACEBACK, 1)[1].splitlines()
        raised = [line for line in behind if line.strip() and not line.startswith((" ", "\t"))]
        if raised:
            return raised[0].strip()
    return _without_classes(lines[0]) if lines else type(error).__name__


def _java_words(error: BaseException) -> str | None:
    """Return the message of the deepest Java cause; None if *error* has no Java exception."""
    try:
        # Py4J's own errors have the first attribute, those that PySpark translated the second.
        cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        for _ in range(_DEEPEST):
            if cause is None or (deeper := cause.getCause()) is None:
                break
            cause = deeper
        return None if cause is None else str(cause.toString())
    except Exception:  # the Java process has gone: use what Python knows
        return None


def _without_classes(line: str) -> str:
    """Return *line* without leading class names, unless it has nothing else."""
    while (match := _CLASS.match(line)) and match.end() < len(line):
        line = line[match.end() :]
    return line
