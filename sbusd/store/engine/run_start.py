"""The beginning of a run of the store, which is written into the file before anything else, and what the last one has left for it.

On a full disk it cannot be written. Then the file is only read, and all changes are refused, until there is room.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict

from sbusd.store.engine.clocks import KeptClock, StoreClock
from sbusd.store.engine.database import Database
from sbusd.store.engine.figures import AllFigures
from sbusd.store.engine.messages import EngineError

RETRY_SECONDS = 1.0
"""Interval between attempts to write the beginning of a run."""


_NOTE_STOP = "INSERT OR REPLACE INTO number VALUES ('stopped', 1)"
_TAKE_STOP = "DELETE FROM number WHERE name = 'stopped'"


class RunStart:
    """*write* writes the beginning of the run, in a transaction; *read* prepares to read only, after that has failed."""

    def __init__(self, database: Database, write: Callable[[], None], read: Callable[[], None]) -> None:
        self.refusal: EngineError | None = None
        """Why all changes are refused, None after the beginning was written."""
        self.was_stopped = False
        """Whether the run before this one was stopped, and not ended by a fault."""
        self._database = database
        self._write = write
        self._read = read
        self._due = 0.0

    def attempt(self) -> None:
        """Write the beginning of the run, or note that the disk is full. Raises EngineError for other errors."""
        self._database.set_read_only(is_read_only=False)
        try:
            with self._database.operation():
                self._write()
                was_stopped = self._database.execute(_TAKE_STOP).rowcount > 0
        except EngineError as error:
            self._database.set_read_only(is_read_only=True)
            self._read()
            self._due = time.monotonic() + RETRY_SECONDS
            if error.code != "ENOSPC":
                raise
            self.refusal = error
        else:
            self.refusal, self.was_stopped = None, was_stopped

    def attempt_again(self) -> None:
        """Do so if the disk was full, once in a while. Called without a transaction."""
        if self.refusal is not None and time.monotonic() >= self._due:
            self.attempt()

    def note_stop(self) -> None:
        """Note that this run is stopped, so it is expected that messages are not stored until the next one. Raises EngineError."""
        with self._database.operation():
            self._database.execute(_NOTE_STOP)


def start_clock(figures: AllFigures, clock: StoreClock) -> None:
    """Let *clock* continue where it was in an earlier run."""
    kept = figures.text("clock")
    clock.start(KeptClock(**json.loads(kept)) if kept else KeptClock(), figures.newest_date())


def keep_clock(figures: AllFigures, clock: StoreClock) -> None:
    """Note what *clock* needs after a restart, if that has changed."""
    figures.set_text("clock", json.dumps(asdict(clock.kept)))
