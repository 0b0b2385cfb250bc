"""The output of a run: the current step on a terminal and as the status of a service, warnings, and totals for each table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

from sbus.protocol.printable import printable
from sbus_programs.standard_error import print_error, write_errors
from sbus_programs.standard_output import print_line

_STATUS_CHARACTERS = 300
"""Maximum length of the status of the service."""

_EMPTY = (
    "nothing to compute: the archive has no segments yet. The recorder completes one every 15 minutes; "
    "sbusctl report --now does not wait for that"
)


@dataclass(slots=True)
class Progress:
    """Prints the output of one run: totals on standard output, the rest on standard error. ``is_quiet`` leaves only warnings.

    *notify* is called with the current step, and with the error of a run that fails.
    """

    is_quiet: bool = False
    notify: Callable[[str], object] = lambda _words: None
    errors: TextIO | None = field(default_factory=lambda: sys.stderr)
    _shown: bool = False

    def step(self, words: str) -> None:
        """Show the current step, on a terminal only; it replaces the previous one."""
        self.notify(printable(words, _STATUS_CHARACTERS))
        if not self.is_quiet and self.errors is not None and self.errors.isatty():
            write_errors(f"\r\x1b[K{printable(words, 78)}", self.errors)
            self._shown = True

    def warn(self, words: str) -> None:
        """Print a warning."""
        self._clear()
        print_error("sbus-pipeline", words, self.errors)

    def fail(self, words: str) -> None:
        """Print why the run fails."""
        self.notify(printable(words, _STATUS_CHARACTERS))
        self.warn(words)

    def print_result(self, words: str) -> None:
        """Print a result on standard output."""
        self._clear()
        if not self.is_quiet:
            print_line("sbus-pipeline", words)

    def _clear(self) -> None:
        """Remove the status line."""
        if self._shown:
            write_errors("\r\x1b[K", self.errors)
            self._shown = False


@dataclass(slots=True)
class TableTotals:
    """Totals of one table."""

    hours: int = 0
    rows: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class RunTotals:
    """Totals of a run."""

    tables: dict[str, TableTotals] = field(default_factory=dict)
    records: int = 0
    kept: int = 0
    """Hours that were not recomputed, because their segments are gone."""
    absent: int = 0
    """Number of segments and index entries that could not be read, in all hours, at the end of the run."""
    is_empty: bool = False
    """Whether the archive has no segments."""
    begun: float = field(default_factory=time.monotonic)

    def add(self, table: str, hours: int, rows: int, seconds: float) -> None:
        """Count one computation of one table."""
        tally = self.tables.setdefault(table, TableTotals())
        tally.hours += hours
        tally.rows += rows
        tally.seconds += seconds

    def lines(self) -> list[str]:
        """Return one line for each table, and one for the run."""
        width = max((len(name) for name in self.tables), default=0)
        lines = [
            f"{name:{width}}  {_many(tally.hours, 'hour'):>11}  {_many(tally.rows, 'row'):>17}  {tally.seconds:>7.1f} s"
            for name, tally in self.tables.items()
        ]
        if self.is_empty:
            return [_EMPTY]
        whole = f"{_many(self.records, 'row')} read in {time.monotonic() - self.begun:.1f} s" if self.tables else "nothing new"
        kept = f"; {_many(self.kept, 'hour')} kept unchanged because segments are gone" if self.kept else ""
        absent = f"; {_many(self.absent, 'segment')} missing, listed in the manifests" if self.absent else ""
        return [*lines, whole + kept + absent]


def _many(count: int, what: str) -> str:
    """Return *count* with the noun *what* in the right form."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
