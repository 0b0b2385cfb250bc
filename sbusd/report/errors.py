"""What can keep a report from being made."""

from __future__ import annotations

from sbusd.protocol.errors import SbusError


class ReportError(SbusError):
    """No report can be made; the text is one line that says what to do."""
