"""How often something costly may be done, when others decide how often it is asked for. No clock of its own."""

from __future__ import annotations

_SHARE = 10
"""Whatever it costs, at most a tenth of the time goes into it."""


class RateLimit:
    """At most once in *seconds*, and in ten times as long as it took. Times are seconds of one monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = float("-inf")

    @property
    def next(self) -> float:
        """From when on it may be done again."""
        return self._next

    def record(self, began: float, ended: float) -> None:
        """Take note that it was done, from *began* to *ended*."""
        self._next = began + max(self._seconds, (ended - began) * _SHARE)


class LogThrottle:
    """Counts what others can cause any number of times, and says when a line about it is due: the 1st, 10th, 100th … time."""

    def __init__(self) -> None:
        self._count = 0

    def next(self) -> int | None:
        """Count one more; return how many there are if that is to be told, else None."""
        self._count += 1
        return self._count if str(self._count).strip("0") == "1" else None
