"""Lets Spark find the Data Source ``sbus``: it searches modules ``pyspark_*`` for a class ``DefaultSource``. Spec: sbus-spark(7)."""

from __future__ import annotations

from sbusd.pipeline.source.datasource import SbusSource

__all__ = ["DefaultSource"]

DefaultSource = SbusSource
