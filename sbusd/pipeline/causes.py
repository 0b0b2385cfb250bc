"""What an exception of Spark is about, in one line: its own first words are rarely it."""

from __future__ import annotations

import re

_DEEPEST = 100
"""Causes of causes that are followed: none has so many, and a circle would have no end."""

_CLASS = re.compile(r"(?:[a-z]\w*\.)+[A-Z][\w$]*: ")
_TRACEBACK = "Traceback (most recent call last):"
_CAUSED_BY = "Caused by: "


def root_cause(error: BaseException) -> str:
    """Return the words of what *error* came from: of its deepest cause in Java, and of what that quotes of another process."""
    words = _java_words(error) or str(error)
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    causes = [line.removeprefix(_CAUSED_BY) for line in lines if line.startswith(_CAUSED_BY)]
    if causes:
        return _without_classes(causes[-1])
    if _TRACEBACK in words:
        # A Python process of Spark: what was raised stands behind the places, which are indented.
        behind = words.rsplit(_TRACEBACK, 1)[1].splitlines()
        raised = [line for line in behind if line.strip() and not line.startswith((" ", "\t"))]
        if raised:
            return raised[0].strip()
    return _without_classes(lines[0]) if lines else type(error).__name__


def _java_words(error: BaseException) -> str | None:
    """Return what the deepest cause of a Java exception says; None if *error* is of Python alone."""
    try:
        # Py4J's own errors have the first, those that PySpark has translated the second.
        cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
        for _ in range(_DEEPEST):
            if cause is None or (deeper := cause.getCause()) is None:
                break
            cause = deeper
        return None if cause is None else str(cause.toString())
    except Exception:  # the Java machine has gone: what Python knows must do
        return None


def _without_classes(line: str) -> str:
    """Return *line* without the names of classes in front, unless it is nothing else."""
    while (match := _CLASS.match(line)) and match.end() < len(line):
        line = line[match.end() :]
    return line
