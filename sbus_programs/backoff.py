"""The time between two attempts to connect: it doubles, and is random so that not all come back at the same moment.

For services and what is not the bus: a client of the bus has times of its own, `sbus.reconnection`.
"""

from __future__ import annotations

import asyncio
import random
from typing import Self

FIRST_SECONDS = 0.1
MAX_SECONDS = 5.0
STABLE_SECONDS = 10.0
"""A connection that lasted for so long is a success, after which the delays begin again."""


class Backoff:
    """The delays of the connections to one bus, one address or one set of servers."""

    def __init__(self) -> None:
        self._next = FIRST_SECONDS

    def delay(self) -> float:
        """Return the seconds to wait before the next attempt: from half the current step to all of it."""
        step, self._next = self._next, min(self._next * 2, MAX_SECONDS)
        return step * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret

    def lasted(self, seconds: float) -> None:
        """Note that a connection ended after *seconds*."""
        if seconds >= STABLE_SECONDS:
            self._next = FIRST_SECONDS


class Attempts:
    """The attempts of a service to connect, for ``async for``: each block connects, and serves until the connection ends.

    The first attempt is at once, the next ones come after the delays of :class:`Backoff`.
    """

    def __init__(self) -> None:
        self._backoff = Backoff()
        self._begin: float | None = None

    def __aiter__(self) -> Self:
        """Return this object."""
        return self

    async def __anext__(self) -> None:
        """Wait until the next attempt."""
        loop = asyncio.get_running_loop()
        if self._begin is not None:
            self._backoff.lasted(loop.time() - self._begin)
            await asyncio.sleep(self._backoff.delay())
        self._begin = loop.time()
