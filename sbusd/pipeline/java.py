"""Finds the Java that Spark needs, and checks its version: without Java, Spark fails with fifty lines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from sbusd.pipeline.errors import PipelineError

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

_ADVICE = f"Install Java {OLDEST} or later (Debian: apt-get install default-jre-headless), or set JAVA_HOME"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_SECONDS = 60
"""Time limit for printing the version; a cold start from a slow disk takes some seconds."""


def check_java(environ: Mapping[str, str]) -> Path:
    """Return the ``java`` that Spark would start with *environ*.

    Raises:
        PipelineError: it does not exist, does not run, or is older than :data:`OLDEST`.
    """
    java = _find(environ)
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "no response"
        raise PipelineError(f"Spark needs Java, but {java} does not run: {reason}. {_ADVICE}") from None
    match = _VERSION.search(asked.stderr + asked.stdout)
    if asked.returncode or match is None:
        raise PipelineError(f"Spark needs Java, but {java} does not print its version. {_ADVICE}")
    if int(match[1]) < OLDEST:
        raise PipelineError(f"Spark needs Java {OLDEST} or later, but {java} is Java {match[1]}. {_ADVICE}")
    return java


def _find(environ: Mapping[str, str]) -> Path:
    """Return the path of java, found in the same way as by Spark's launcher."""
    if home := environ.get("JAVA_HOME"):
        java = Path(home, "bin", "java")
        if not os.access(java, os.X_OK):
            raise PipelineError(f"Spark needs Java, but JAVA_HOME is {home}, which has no bin/java. {_ADVICE}")
        return java
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        return Path(found)
    raise PipelineError(f"Spark needs Java, but it is not installed. {_ADVICE}")
