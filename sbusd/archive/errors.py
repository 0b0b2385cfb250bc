"""Errors of the files on disk: the record and the tables."""

from __future__ import annotations

from pathlib import Path

from sbusd.protocol.errors import SbusError


class _FileError(SbusError):
    """``path`` is the file or directory, ``reason`` says what is wrong with it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class RecordError(_FileError):
    """A file of the record is missing, damaged or invalid."""


class SegmentGoneError(RecordError):
    """A segment in the index does not exist: retention removed it, or another program did."""


class TablesError(_FileError):
    """A directory of tables cannot be used."""
