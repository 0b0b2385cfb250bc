"""What can keep the pipeline from running."""

from __future__ import annotations

from sbusd.protocol.errors import SbusError


class PipelineError(SbusError):
    """The pipeline cannot run; the text is one line that says what to do."""
