"""Publishes stored messages under their keys, on one connection at a time, and knows what the bus has taken.

Nothing waits here: what the bus has no room for now stays noted in the file, from which it is published later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence

from sbusd.client.errors import Closed, RemoteRefusal, SbusError, TimedOut
from sbusd.store.bus_connections import ServingBus, passed_on
from sbusd.store.engine.messages import NewMessage, Stored

MIN_BATCH = 4
"""Messages that are published as a batch."""

ASK_SECONDS = 0.05
"""Shortest interval of asking the bus whether it has taken what was sent."""


class StorePublisher:
    """One connection that publishes. *counts* are the store's counters; *report* gets one line for the log."""

    def __init__(self, counts: Counter[str], report: Callable[[str], None]) -> None:
        self._counts = counts
        self._report = report
        self._bus: ServingBus | None = None
        self._waiting: list[Callable[[], object]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether it has a connection."""
        return self._bus is not None

    def connected(self, bus: ServingBus) -> None:
        """Publish on *bus* from now on."""
        self._bus = bus

    def disconnected(self) -> None:
        """Publish nothing until the next connection. Whether the bus has taken what was sent last is not known."""
        self._bus = None
        self._waiting = []
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def publish_many(self, messages: Sequence[NewMessage]) -> tuple[int, int]:
        """Publish stored messages as those of their senders, until one does not fit, or the connection has ended.

        Return how many need no further attempt, and how many of these can never be published.
        """
        done, never = 0, 0
        together = self._bus.together() if self._bus is not None and len(messages) >= MIN_BATCH else contextlib.nullcontext()
        with contextlib.suppress(SbusError), together:
            for each in messages:
                packet = self._packet(each)
                if packet and (self._bus is None or not self._bus.send(packet)):
                    break
                done += 1
                never += not packet
                self._counts["published"] += bool(packet)
        return done, never

    async def publish_waiting(self, messages: Sequence[Stored]) -> int:
        """Publish stored messages, waiting for room, and return how many can never be published. Raises SbusError, OSError."""
        never = 0
        for each in messages:
            packet = self._packet(each)
            if packet:
                await self._send(packet)
                self._counts["published"] += 1
            never += not packet
        return never

    def when_taken(self, function: Callable[[], object]) -> None:
        """Call *function* when the bus has taken all that was sent before; never, if the connection ends before."""
        if self._bus is None:
            return
        self._waiting.append(function)
        if self._task is None:
            self._task = asyncio.ensure_future(self._ask(self._bus))

    async def taken(self) -> None:
        """Return when the bus has taken what was sent, or the connection has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _send(self, packet: bytes) -> None:
        """Send *packet* when there is room. Raises SbusError, OSError."""
        while self._bus is not None:
            try:
                await self._bus.send_later(packet)
            except TimedOut as error:
                self._report(f"stored messages wait for the bus: {error}")
            else:
                return
        raise Closed("the bus")

    async def _ask(self, bus: ServingBus) -> None:
        """Ask whether the bus has taken what was sent, while functions wait for that."""
        try:
            while self._waiting:
                functions, self._waiting = self._waiting, []
                try:
                    # The response to a ping follows the handling of all packets before it.
                    with contextlib.suppress(RemoteRefusal):
                        await bus.ping()
                except TimedOut:
                    self._waiting = functions + self._waiting
                    continue
                for each in functions:
                    each()
                await asyncio.sleep(ASK_SECONDS)
        except (SbusError, OSError) as error:
            self._report(f"cannot publish stored messages: {error}")
        finally:
            if self._bus is bus:
                self._task = None

    def _packet(self, message: NewMessage | Stored) -> bytes:
        """Return the packet of *message*; empty if it has none, which is reported."""
        packet = passed_on(message.sender, message.key, message.payload)
        if packet and (self._bus is None or len(packet) <= self._bus.packet_limit):
            return packet
        self._report(f"cannot publish a stored message: with its sender, a payload of {len(message.payload)} bytes is too long")
        return b""
