"""Delivery attempts to remote hosts, published on the bus for the recorder. Spec: sbus-relay(8); rows: sbus-record(5).

The relay never waits for the bus. Attempts that the bus does not accept in time are dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sbusd.client import AsyncBus
from sbusd.protocol.errors import SbusError
from sbusd.protocol.printable import printable

KEY = "relay/attempt"
"""The key of published attempts. Calls use ``relay/<twin>/…``, so no call has this key."""

MAX_WAITING = 10_000
"""Attempts that wait for the bus: a few seconds of the fastest relay, a few megabytes."""

RETRY_SECONDS = 5.0
"""Pause before the next connection attempt to a bus that is not available."""

_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to deliver a message to a remote host."""

    twin: int
    command: str
    number: int
    """From 1."""
    outcome: str
    """``sent``, ``away``, ``refused`` or ``unknown``."""
    reason: str
    """Why it failed; empty if the message was sent."""
    duration_ns: int
    call: str
    """``call_digest`` of the bus call; for a request that did not come from the bus, a digest of its own."""


AttemptObserver = Callable[[Attempt], None]
"""Called for each attempt; must not block."""


class AttemptPublisher:
    """Publishes attempts on the bus while :meth:`run` runs."""

    def __init__(self, address: str, count: Callable[[str, int], Awaitable[None]], observer: AttemptObserver | None = None) -> None:
        """*count* counts dropped attempts; *observer* is also called for each attempt."""
        self._address = address
        self._count = count
        self._observer = observer
        self._waiting: asyncio.Queue[Attempt] = asyncio.Queue(MAX_WAITING)
        self._dropped = 0

    def publish(self, attempt: Attempt) -> None:
        """Queue *attempt* for publication; drop it if the queue is full."""
        if self._observer is not None:
            self._observer(attempt)
        try:
            self._waiting.put_nowait(attempt)
        except asyncio.QueueFull:
            self._dropped += 1

    async def run(self) -> None:
        """Publish queued attempts until cancelled. Raises RedisUnavailableError if drops cannot be counted; then call it again."""
        while True:
            with contextlib.suppress(SbusError, OSError):
                async with AsyncBus.connect(self._address, timeout=_TIMEOUT_SECONDS) as bus:
                    while True:
                        attempt = await self._waiting.get()
                        self._dropped += 1  # until the bus has accepted it
                        await bus.publish(KEY, encode(attempt))
                        self._dropped -= 1
            await self._drop_waiting()

    async def _drop_waiting(self) -> None:
        """Drop and count the queued attempts, then pause: the bus is not available."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
            self._dropped += 1
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            await self._count("attempts-untold", dropped)
        await asyncio.sleep(RETRY_SECONDS)


def encode(attempt: Attempt) -> bytes:
    """Return *attempt* in the JSON format that the recorder reads."""
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


def print_attempt(attempt: Attempt) -> None:
    """Write *attempt* to standard error in one line, for ``--debug``."""
    reason = f": {attempt.reason}" if attempt.reason else ""
    words = f"attempt {attempt.number} of {attempt.command} to host {attempt.twin}: {attempt.outcome}{reason}"
    print(f"sbus-relay: {printable(words)} ({attempt.duration_ns / 1e6:.1f} ms)", file=sys.stderr, flush=True)
