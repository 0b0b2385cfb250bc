"""Limits the rate of publications."""

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
