"""Places for a bounded number of programs, for which callers take turns: else one with many calls would keep all others waiting."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class FairSemaphore:
    """*places* for what runs at once."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def place(self, party: Hashable) -> AsyncIterator[None]:
        """Have a place for *party*, a user or another host, once it is that one's turn. Cancelled while it waits, it has none."""
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
                # The place was passed on in the very moment in which nobody wanted it any more.
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give a place to the next of the party whose turn it is; that one is the last then."""
        while self._waiting:
            party, queue = self._waiting.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._waiting[party] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
