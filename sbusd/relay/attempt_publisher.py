"""Attempts to reach other hosts, told on the bus: what the recorder makes rows of, sbus-record(5).

The relay never waits for the bus. What the bus does not take in time is not told, and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

from sbusd.client import AsyncBus
from sbusd.protocol.errors import SbusError
from sbusd.relay.attempts import Attempt

KEY = "relay/attempt"
"""Where attempts are told; calls go to ``relay/<twin>/…``, so none has this key."""

MAX_WAITING = 10_000
"""Attempts that wait for the bus: some seconds of the fastest relay, a few megabytes."""

AGAIN_SECONDS = 5.0
"""How long a bus that is away is left alone."""

_TIMEOUT_SECONDS = 10.0


class BusWitness:
    """Tells attempts on the bus, as long as :meth:`run` runs."""

    def __init__(self, address: str, count: Callable[[str, int], Awaitable[None]], other: Callable[[Attempt], None] | None = None) -> None:
        """*count* counts what could not be told; *other* hears of each attempt too."""
        self._address = address
        self._count = count
        self._other = other
        self._waiting: asyncio.Queue[Attempt] = asyncio.Queue(MAX_WAITING)
        self._untold = 0

    def saw(self, attempt: Attempt) -> None:
        """Tell *attempt* soon."""
        if self._other is not None:
            self._other(attempt)
        try:
            self._waiting.put_nowait(attempt)
        except asyncio.QueueFull:
            self._untold += 1

    async def run(self) -> None:
        """Tell what is seen until cancelled. Raises RedisAwayError where it cannot be counted; then run again."""
        while True:
            with contextlib.suppress(SbusError, OSError):
                async with AsyncBus.connect(self._address, timeout=_TIMEOUT_SECONDS) as bus:
                    while True:
                        attempt = await self._waiting.get()
                        self._untold += 1  # until it has been told
                        await bus.publish(KEY, encode(attempt))
                        self._untold -= 1
            await self._settle()

    async def _settle(self) -> None:
        """Count what waited while the bus is away."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
            self._untold += 1
        if self._untold:
            untold, self._untold = self._untold, 0
            await self._count("attempts-untold", untold)
        await asyncio.sleep(AGAIN_SECONDS)


def encode(attempt: Attempt) -> bytes:
    """Return *attempt* as the recorder reads it."""
    members = {
        "twin": attempt.twin,
        "cmd": attempt.command,
        "attempt": attempt.number,
        "code": attempt.outcome,
        "reason": attempt.reason,
        "duration": attempt.duration_ns,
        "call": attempt.call,
    }
    return json.dumps(members, separators=(",", ":")).encode()
