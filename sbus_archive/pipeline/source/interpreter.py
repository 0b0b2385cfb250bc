"""Lets Spark start the Python interpreter of this program, which has the package ``sbusd``."""

from __future__ import annotations

import os
import shlex
import sys

from sbus_archive.optional_packages import pass_local_packages
from sbus_archive.pipeline.errors import SourceError

PYTHON = "PYSPARK_PYTHON"


def use_this_python() -> None:
    """Let Spark start the interpreter of this program, unless :envvar:`PYSPARK_PYTHON` names another one.

    Spark starts ``python3`` from the ``PATH`` otherwise, which may have no package ``sbusd``: then it does not find the Data Source.
    Call it before Spark is started, because Spark reads the variable only then.

    Raises:
        SourceError: Spark runs already, with another interpreter.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - slow to import

    wanted, context = os.environ.get(PYTHON, sys.executable), SparkContext._active_spark_context
    if context is None:
        os.environ[PYTHON] = wanted
        pass_local_packages(os.environ)
    elif context.pythonExec != wanted:
        raise SourceError(
            f"Spark runs already, and starts the Python interpreter {context.pythonExec}, not {wanted}. Call use_this_python() before"
            f" Spark is started, or start the program with: {PYTHON}={shlex.quote(wanted)}"
        )
