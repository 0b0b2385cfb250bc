"""Where Spark looks for the Data Source ``sbus`` by itself: a module ``pyspark_*`` with a class ``DefaultSource``. Spec: sbus-spark(7)."""

from __future__ import annotations

from sbusd.pipeline.source.datasource import SbusSource

__all__ = ["DefaultSource"]

DefaultSource = SbusSource
