"""Errors of the pipeline and of the Data Source. The text of each is one line that says what to do."""

from __future__ import annotations

from sbusd.protocol.errors import SbusError


class PipelineError(SbusError):
    """The pipeline cannot run."""


class SourceError(SbusError, ValueError):
    """The Data Source cannot use an option, a schema or a row."""
