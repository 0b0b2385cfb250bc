"""Places for a bounded number of programs, for which users take turns: else one with many calls would keep all others waiting."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """*places* for what runs at once."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: OrderedDict[int, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def place(self, uid: int) -> AsyncIterator[None]:
        """Have a place for user *uid*, once it is that one's turn. Cancelled while it waits, it has none."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(uid)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, uid: int) -> None:
        """Wait for a place."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The place was passed on in the very moment in which nobody wanted it any more.
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give a place to the next of the user whose turn it is; that user is the last then."""
        while self._waiting:
            uid, queue = self._waiting.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._waiting[uid] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
