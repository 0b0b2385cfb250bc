"""What stops a bench."""

from __future__ import annotations

from sbusd.protocol.errors import SbusError


class BenchError(SbusError):
    """The bench cannot go on; the words say who could not, and why."""
