"""Times of connections: the bus keeps them on the boot clock and reports them as dates.

A date that was stored would be wrong after the wall clock was set, and a reader could not find out whether a process is older than its
connection: machines without a clock learn the date after their first connections.
"""

from __future__ import annotations

import time


def date_of(boot_seconds: float) -> float:
    """Return a time of the boot clock as a date, in seconds since 1970, by the wall clock of now."""
    return boot_seconds + _offset()


def boot_time_of(date: float) -> float:
    """Return the time of the boot clock at *date*, in seconds since 1970."""
    return date - _offset()


def _offset() -> float:
    """Return the difference of the two clocks, in seconds."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
