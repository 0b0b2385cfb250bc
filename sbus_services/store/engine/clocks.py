"""The clocks of a store, in milliseconds. A step of the wall clock moves only dates.

*now* counts delays, backoffs and expiry: it goes on with CLOCK_BOOTTIME, so time in which the machine sleeps counts, and continues at a
restart of the store. After a reboot it continues from the date, which :class:`WallClock` doubts after a jump. *leases* is *now* without the
time in which the store did not run: asleep, stopped or frozen, as its workers then usually were too. *date* is the wall clock: it is stored
with messages, and decides when a job with ``at`` is ready. *cutoff* is the date for deletion by age.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sbus_programs.wall_clock import Clocks, WallClock

MS = 1_000_000
"""Nanoseconds in a millisecond."""

STOPPED_MS = 5_000
"""A store that did not look at its clock for so long was not running: the sweeps look at it once a second."""


@dataclass(frozen=True, slots=True)
class KeptClock:
    """What a restart needs: the boot, *now* minus CLOCK_BOOTTIME, and *now* minus *leases*."""

    boot: str = ""
    offset: int = 0
    lag: int = 0


class StoreClock(Protocol):
    """The clocks as the engine uses them, in one thread but for ``now`` and ``date``."""

    def start(self, kept: KeptClock, newest: int) -> None:
        """Continue after a restart. *newest* is the date of the newest message, 0 without one."""

    @property
    def kept(self) -> KeptClock:
        """What the next start needs."""

    def now(self) -> int:
        """Return a time that no step of the wall clock changes."""

    def leases(self) -> int:
        """Return the time that counts for leases."""

    def date(self) -> int:
        """Return the time since 1970."""

    def cutoff(self, age_ms: int) -> int:
        """Return the date before which everything is older than *age_ms*."""

    def stored(self, date: int) -> None:
        """Note that a message was stored with *date*."""

    @property
    def is_doubted(self) -> bool:
        """Whether the date has jumped, so that nothing is deleted because of it."""


class SystemClock:
    """The clocks of this machine. *note* gets lines for the log; *kept* is the file in which the date survives a restart."""

    def __init__(self, note: Callable[[str], None], kept: Path, clocks: Clocks | None = None) -> None:
        self._note = note
        self._file = kept
        self._clocks = clocks or Clocks()
        self._dates: WallClock
        self._offset = self._lag = self._seen = 0
        self._boot = ""

    def start(self, kept: KeptClock, newest: int) -> None:
        """Continue after a restart; see StoreClock."""
        self._dates = WallClock(self._note, newest=newest * MS or None, kept=self._file, clocks=self._clocks)
        try:
            self._boot = self._clocks.boot_id()
        except OSError:
            self._boot = ""
        self._seen = self._clocks.boot() // MS
        self._lag = kept.lag
        self._offset = kept.offset if self._boot and self._boot == kept.boot else self._dates.date() // MS - self._seen

    @property
    def kept(self) -> KeptClock:
        """What the next start needs."""
        return KeptClock(self._boot, self._offset, self._lag)

    def now(self) -> int:
        """Return a time that no step of the wall clock changes."""
        return self._clocks.boot() // MS + self._offset

    def leases(self) -> int:
        """Return the time that counts for leases."""
        boot = self._clocks.boot() // MS
        if boot - self._seen > STOPPED_MS:
            self._lag += boot - self._seen
        self._seen = boot
        return boot + self._offset - self._lag

    def date(self) -> int:
        """Return the time since 1970."""
        return self._clocks.wall() // MS

    def cutoff(self, age_ms: int) -> int:
        """Return the date before which everything is older than *age_ms*."""
        return self._dates.cutoff(age_ms * MS) // MS

    def stored(self, date: int) -> None:
        """Note that a message was stored with *date*."""
        self._dates.message(date * MS)

    @property
    def is_doubted(self) -> bool:
        """Whether the date has jumped, so that nothing is deleted because of it."""
        return self._dates.is_doubted
