"""How often a feed does work that takes long."""

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
