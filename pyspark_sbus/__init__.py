"""Lets Spark find the Data Source ``sbus``: it searches modules ``pyspark_*`` for a class ``DefaultSource``. Spec: sbus-spark(7)."""

from __future__ import annotations

from sbus_archive.pipeline.source.datasource import SbusSource
from sbus_archive.pipeline.source.interpreter import use_this_python

__all__ = ["DefaultSource", "use_this_python"]

DefaultSource = SbusSource
