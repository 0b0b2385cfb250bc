"""Limits of rates: of work that takes long, and of publications."""

from __future__ import annotations

import asyncio
import time

_BURST_SECONDS = 0.1
"""Publications may be ahead of the rate by this time."""


class Pace:
    """At most *rate* publications per second."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._allowed = 0.0

    async def keep(self) -> None:
        """Count one publication, and wait until the next is allowed."""
        now = time.monotonic()
        self._allowed = max(self._allowed, now - _BURST_SECONDS) + 1 / self._rate
        if self._allowed > now:
            await asyncio.sleep(self._allowed - now)


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
