"""What watches a recorder from within: a journal that remembers, a wait for the disk, clocks that stand still."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from sbusd.archive.record.reader import RecordReader
from sbusd.archive.record.schema import Row, rows_of
from sbusd.recorder.recording import Clocks
from sbusd.systemd.journal import Event
from tests.support.records import NOON


class Book:
    """A journal that remembers."""

    def __init__(self) -> None:
        self.told: list[tuple[Event, dict[str, str | int]]] = []

    def tell(self, event: Event, **facts: str | int) -> None:
        """Remember that *event* was told."""
        self.told.append((event, facts))

    def facts(self, event: Event) -> list[dict[str, str | int]]:
        """Return the facts of each time that *event* was told."""
        return [facts for each, facts in self.told if each is event]


class Durable:
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
class Hands:
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
