"""A semaphore whose places go to callers in turn, so that one caller with many calls does not block the others."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class FairSemaphore:
    """A semaphore with a number of *places*."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def place(self, party: Hashable) -> AsyncIterator[None]:
        """Hold a place for *party*, a user or another host, when it is its turn."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(party)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, party: Hashable) -> None:
        """Wait for a place."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(party, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The place was passed on at the moment of the cancellation.
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give the place to the next party, which then becomes the last."""
        while self._waiting:
            party, queue = self._waiting.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._waiting[party] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
