"""The beginning of a run of the store, which is written into the file before anything else.

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
from sbusd.store.engine.messages import StoreError

RETRY_SECONDS = 1.0
"""Interval between attempts to write the beginning of a run."""


class RunStart:
    """*write* writes the beginning of the run, in a transaction; *read* prepares to read only, after that has failed."""

    def __init__(self, database: Database, write: Callable[[], None], read: Callable[[], None]) -> None:
        self.refusal: StoreError | None = None
        """Why all changes are refused, None after the beginning was written."""
        self._database = database
        self._write = write
        self._read = read
        self._due = 0.0

    def attempt(self) -> None:
        """Write the beginning of the run, or note that the disk is full. Raises StoreError for other errors."""
        self._database.set_read_only(is_read_only=False)
        try:
            with self._database.operation():
                self._write()
        except StoreError as error:
            self._database.set_read_only(is_read_only=True)
            self._read()
            self._due = time.monotonic() + RETRY_SECONDS
            if error.code != "ENOSPC":
                raise
            self.refusal = error
        else:
            self.refusal = None

    def attempt_again(self) -> None:
        """Do so if the disk was full, once in a while. Called without a transaction."""
        if self.refusal is not None and time.monotonic() >= self._due:
            self.attempt()


def start_clock(figures: AllFigures, clock: StoreClock) -> None:
    """Let *clock* continue where it was in an earlier run."""
    kept = figures.text("clock")
    clock.start(KeptClock(**json.loads(kept)) if kept else KeptClock(), figures.newest_date())


def keep_clock(figures: AllFigures, clock: StoreClock) -> None:
    """Note what *clock* needs after a restart, if that has changed."""
    figures.set_text("clock", json.dumps(asdict(clock.kept)))
