"""What can be wrong with a record on disk."""

from __future__ import annotations

from pathlib import Path

from sbusd.protocol.errors import SbusError


class RecordError(SbusError):
    """A file of the record is missing, damaged, or not what it should be. ``path`` is the file, ``reason`` what is wrong with it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class SegmentGoneError(RecordError):
    """A segment that the index names is not there: retention has removed it, or somebody has."""
