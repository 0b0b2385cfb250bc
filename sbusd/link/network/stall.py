"""Waits while the local bus is full, and counts it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from sbusd.link.network.counters import NetworkCounters

Writable = Callable[[], Awaitable[None]]
"""Returns when the local bus takes messages again; at once if it does so now."""

NOTICEABLE_SECONDS = 0.01
"""A shorter wait is not counted as a stall."""


class Stall:
    """Backpressure from the local bus to the network: an adapter awaits it between two reads."""

    def __init__(self, writable: Writable, counters: NetworkCounters) -> None:
        self._writable = writable
        self._counters = counters
        self._waiting = 0

    @property
    def is_active(self) -> bool:
        """Whether the network is not read now. Its silence then says nothing about the other end."""
        return self._waiting > 0

    async def end(self) -> None:
        """Return when the local bus is not full."""
        begin = time.monotonic()
        self._waiting += 1
        try:
            await self._writable()
        finally:
            self._waiting -= 1
            seconds = time.monotonic() - begin
            if seconds >= NOTICEABLE_SECONDS:
                self._counters.stalls += 1
                self._counters.stalled_seconds += seconds
