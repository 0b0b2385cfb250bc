"""A position in the journal, and the file that saves it. Spec: sd_journal_get_cursor(3)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from sbusd.protocol.errors import SbusError
from sbusd.protocol.printable import printable

_FORM = re.compile(r"s=([0-9a-f]{32});i=([0-9a-f]{1,16});b=([0-9a-f]{32});m=([0-9a-f]{1,16});t=([0-9a-f]{1,16});x=([0-9a-f]{1,16})")

_LONGEST = 1024
"""Bytes read from a cursor file: several times the longest cursor."""


class BadCursorError(SbusError, ValueError):
    """An invalid journal cursor."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of an entry. Times are microseconds; ``number`` counts the entries of one ``source`` without gaps."""

    text: str
    source: str
    number: int
    boot: str
    monotonic: int
    realtime: int
    checksum: int
    """Checksum of the entry's contents."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse *text*. Raises BadCursorError."""
        match = _FORM.fullmatch(text)
        if match is None:
            raise BadCursorError(f"invalid journal cursor: {printable(text, 60)}")
        source, number, boot, monotonic, realtime, checksum = match.groups()
        return cls(text, source, int(number, 16), boot, int(monotonic, 16), int(realtime, 16), int(checksum, 16))

    def is_same_entry(self, other: Cursor) -> bool:
        """Return whether both are the same entry, which may be in two files: journald copies entries of the early boot."""
        if self.source == other.source:
            return self.number == other.number
        return (self.boot, self.monotonic, self.realtime, self.checksum) == (other.boot, other.monotonic, other.realtime, other.checksum)

    def is_behind(self, other: Cursor) -> bool:
        """Return whether it certainly comes after *other*. Times do not decide, because clocks can be set."""
        return self.source == other.source and self.number > other.number

    def missing_since(self, earlier: Cursor) -> int | None:
        """Return how many entries are missing between *earlier* and this one, None if unknown."""
        return max(0, self.number - earlier.number - 1) if self.source == earlier.source else None


class CursorFile:
    """A file with one cursor. Without a path nothing is saved."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def load(self) -> Cursor | None:
        """Return the saved cursor, None if there is none.

        Raises:
            BadCursorError: the file is malformed.
            OSError: it cannot be read.
        """
        if self.path is None:
            return None
        try:
            with self.path.open("rb") as file:
                content = file.read(_LONGEST)
        except FileNotFoundError:
            return None
        return Cursor.parse(content.decode("ascii", "replace").removesuffix("\n"))

    def save(self, cursor: Cursor) -> None:
        """Replace the saved cursor atomically: after a power failure the file has the old or the new one. Raises OSError.

        Signals that end the program are delayed until this is done.
        """
        if self.path is None:
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            self._replace(self.path, f"{cursor.text}\n".encode("ascii"))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @staticmethod
    def _replace(path: Path, content: bytes) -> None:
        """Replace the file at *path*. Raises OSError."""
        fresh = path.with_name(f".{path.name}.new")
        try:
            with fresh.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
