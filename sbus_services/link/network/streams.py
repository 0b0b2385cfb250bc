"""The streams of connections: read in turns, not while the local bus is full, and why one has ended."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

from sbus.protocol.printable import printable
from sbus_services.link.network.counters import NetworkCounters

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


MAX_WORDS = 300
"""Longest text of another host that is kept, in characters."""


def error_words(error: Exception) -> str:
    """Return the reason in *error*: printable, without the names of classes where it has a text."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate rejected: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and getattr(error, "reason", None):
        return f"TLS: {error.reason.replace('_', ' ').lower()}"
    if isinstance(error, TimeoutError):
        return "no response in time"
    if isinstance(error, OSError) and error.errno and error.errno > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)  # asyncio's own text repeats the address
    if isinstance(error, OSError) and error.strerror:
        return printable(error.strerror, MAX_WORDS)
    return printable(str(error).removeprefix("nats: ") or type(error).__name__, MAX_WORDS)


class _Protocol(asyncio.StreamReaderProtocol):
    """Has its transport also if the attempt to connect is cancelled."""

    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the *transport*."""
        if isinstance(transport, asyncio.Transport):
            self.transport = transport
        super().connection_made(transport)


async def open_streams(*address: Any, limit: int = 1 << 16, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as :func:`asyncio.open_connection`, with the same arguments, but leave no transport if the attempt is cancelled.

    If it is cancelled when TLS is established, and the task has not seen that yet, asyncio says goodbye and waits for the other side.
    That may take long, and a loop that ends has no time for it.

    Raises what :meth:`asyncio.loop.create_connection` raises.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = _Protocol(reader, loop=loop)
    try:
        transport, _ = await loop.create_connection(lambda: protocol, *address, **options)
    except BaseException:
        if protocol.transport is not None:
            protocol.transport.abort()
        raise
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
