"""Publishes stored messages under their keys, in the order of the commits. Never blocks a commit: what the bus does not take is counted."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence

from sbusd.client.errors import SbusError
from sbusd.store.bus_connections import ServingBus, passed_on
from sbusd.store.engine.messages import NewMessage, Sender

MIN_BATCH = 4
"""Messages that are published as a batch."""

MAX_PENDING_BYTES = 32 << 20
"""Packets that wait for room in the socket. Above that, messages are stored but not published."""


class Publisher:
    """Publishes on one connection at a time. *counts* are the store's counters; *report* gets one line for the log."""

    def __init__(self, counts: Counter[str], report: Callable[[str], None]) -> None:
        self._counts = counts
        self._report = report
        self._bus: ServingBus | None = None
        self._pending: deque[bytes | Callable[[], object]] = deque()
        self._pending_bytes = 0
        self._task: asyncio.Task[None] | None = None

    def connected(self, bus: ServingBus) -> None:
        """Publish on *bus* from now on."""
        self._bus = bus

    def disconnected(self) -> None:
        """Publish nothing until the next connection."""
        self._bus = None
        self._drop_pending()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def publish_many(self, messages: Sequence[NewMessage]) -> None:
        """Publish stored messages as those of their senders."""
        bus = self._bus
        if bus is None or self._pending or len(messages) < MIN_BATCH:
            for each in messages:
                self.publish(each.sender, each.key, each.payload)
            return
        with contextlib.suppress(SbusError), bus.together():
            for each in messages:
                self.publish(each.sender, each.key, each.payload)

    def publish(self, sender: Sender, key: bytes, payload: bytes) -> None:
        """Publish a stored message as *sender*'s."""
        packet = passed_on(sender, key, payload)
        if packet:
            self.send(packet)
        else:
            self._missing(f"a message with a payload of {len(payload)} bytes cannot be published with its sender")

    def send(self, packet: bytes) -> None:
        """Send *packet* after those before it."""
        if self._bus is None:
            self._missing("the store is not connected to the bus")
        elif not self._pending and self._bus.send(packet):
            self._counts["published"] += 1
        elif self._pending_bytes + len(packet) > MAX_PENDING_BYTES:
            self._missing(f"more than {MAX_PENDING_BYTES >> 20} MiB wait for the bus")
        else:
            self._pending.append(packet)
            self._pending_bytes += len(packet)
            if self._task is None:
                self._task = asyncio.ensure_future(self._drain(self._bus))

    def when_sent(self, function: Callable[[], object]) -> None:
        """Call *function* when the messages before it were sent; never, if the connection ends before."""
        if self._pending:
            self._pending.append(function)
        elif self._bus is not None:
            function()

    async def sent(self) -> None:
        """Return when nothing waits for room in the socket."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _drain(self, bus: ServingBus) -> None:
        """Send the packets that wait."""
        try:
            while self._pending:
                first = self._pending[0]
                if isinstance(first, bytes):
                    await bus.send_later(first)
                    self._pending_bytes -= len(first)
                    self._counts["published"] += 1
                else:
                    first()
                self._pending.popleft()
        except (SbusError, OSError) as error:
            self._drop_pending()
            self._report(f"cannot publish stored messages: {error}")
        finally:
            if self._bus is bus:
                self._task = None

    def _drop_pending(self) -> None:
        """Send nothing of what waits; the next connection publishes what calls have put."""
        self._counts["unpublished"] += sum(isinstance(each, bytes) for each in self._pending)
        self._pending.clear()
        self._pending_bytes = 0

    def _missing(self, reason: str) -> None:
        self._counts["unpublished"] += 1
        self._report(f"cannot publish a stored message: {reason}")
