"""Turns: how much of what one connection has sent is handled before others are."""

from __future__ import annotations

import asyncio

from sbusd.link.network.stall import Stall

TURN_FRAMES = 64
TURN_SECONDS = 0.005
"""Frames of one connection that are handled in one turn of the event loop, and about how long they may take."""


class Turn:
    """The turn of one connection. *stall* is awaited between two turns."""

    def __init__(self, stall: Stall) -> None:
        self._stall = stall
        self._loop = asyncio.get_running_loop()
        self._begin()

    def is_over(self) -> bool:
        """Note that a frame was handled, and return whether it was the last one of this turn."""
        self._frames += 1
        return self._frames >= TURN_FRAMES or self._loop.time() >= self._end

    async def next(self) -> None:
        """Return in the next turn, after all other connections had theirs."""
        await self._stall.end()
        await asyncio.sleep(0)
        self._begin()

    def _begin(self) -> None:
        self._frames = 0
        self._end = self._loop.time() + TURN_SECONDS
