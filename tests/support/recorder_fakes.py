"""Test doubles for a recorder: a log that keeps its messages, a wait for the disk, and manual clocks."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from sbus_archive.record.schema import Row, rows_of
from sbus_archive.record.segments import RecordReader
from sbus_archive.recorder.recording import Clocks
from sbus_programs.systemd.log_records import Fact, LogMessage
from tests.support.records import NOON


class RecordedLog:
    """A log that remembers its messages."""

    def __init__(self) -> None:
        self.records: list[tuple[LogMessage, dict[str, Fact]]] = []

    def record(self, message: LogMessage, /, **facts: Fact) -> None:
        """Remember *message*."""
        self.records.append((message, facts))

    def facts(self, message: LogMessage) -> list[dict[str, Fact]]:
        """Return the facts of each record of *message*."""
        return [facts for each, facts in self.records if each is message]


class DurableRows:
    """Waits until rows are on the disk."""

    def __init__(self) -> None:
        self.seq = 0
        self._changed = threading.Condition()

    def __call__(self, seq: int) -> None:
        """Take note that the rows up to *seq* are on the disk."""
        with self._changed:
            self.seq = seq
            self._changed.notify()

    def wait(self, seq: int) -> None:
        """Wait for the row *seq*."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.seq >= seq, 30), f"only {self.seq} rows are durable"


@dataclass
class ManualClocks:
    """Clocks that a test moves; both begin at noon, and at 100 seconds."""

    wall_ns: int = NOON
    seconds: float = 100.0

    def pass_time(self, seconds: float) -> None:
        """Let both go on by *seconds*."""
        self.seconds += seconds
        self.wall_ns += int(seconds * 1e9)

    def clocks(self) -> Clocks:
        """Return the clocks."""
        return Clocks(lambda: self.wall_ns, lambda: self.seconds)


def recorded(archive: str | Path) -> list[Row]:
    """Return all rows of an archive, by their positions."""
    opened = RecordReader(Path(archive))
    return sorted((row for entry in opened.entries() for row in rows_of(opened.read(entry))), key=lambda row: row.seq)
