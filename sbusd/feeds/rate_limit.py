"""Rate limits for costly work and for log lines that clients can cause. No clock of its own."""

from __future__ import annotations

_SHARE = 10
"""The work takes at most one tenth of the time."""


class RateLimit:
    """Allows work once in *seconds*, and once in ten times its duration. Times are seconds of one monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = float("-inf")

    @property
    def next_time(self) -> float:
        """The time from which the work is allowed again."""
        return self._next

    def record(self, began: float, ended: float) -> None:
        """Record work that lasted from *began* to *ended*."""
        self._next = began + max(self._seconds, (ended - began) * _SHARE)


class LogThrottle:
    """Counts occurrences, of which the 1st, 10th, 100th … is logged."""

    def __init__(self) -> None:
        self._total = 0

    def count(self) -> int | None:
        """Count one occurrence; return the total if it is to be logged, else None."""
        self._total += 1
        return self._total if str(self._total).strip("0") == "1" else None
