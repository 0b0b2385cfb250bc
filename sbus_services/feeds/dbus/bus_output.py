"""The feed's side of the message bus: it publishes JSON, and receives requests, in an event loop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Self

from sbus import AsyncBus, Gap, Message, Overflow, RemoteRefusal, Scope
from sbus.asyncio.streams import AsyncSubscription
from sbus_services.feeds.bus_publisher import LogThrottle
from sbus_services.feeds.netlink.entries import Attributes

_QUEUE_PACKETS = 64
"""All requests are alike, so excess ones are only counted: clients cannot exhaust the feed's memory with requests."""

PAYLOAD_BYTES = 160 << 10
"""Longest payload: with its key and the kernel's overhead it must fit into a socket of Linux's default size, 208 KiB."""


class BusOutput:
    """A connection to the bus that is restored when it is lost, with a subscription to the key of requests."""

    def __init__(self, bus: AsyncBus, requests: AsyncSubscription, log: Callable[[str], None]) -> None:
        self.requests = 0
        """Requests that clients have published."""
        self.refused = 0
        """Publications that the bus rejected."""
        self.reconnects = 0
        """Number of reconnections."""
        self._bus = bus
        self._requests = requests
        self._log = log
        self._refusals = LogThrottle()
        bus.on_refused = self._note_refusal

    @classmethod
    async def connect(cls, address: str | None, scope: Scope | None, request_key: str, log: Callable[[str], None]) -> Self:
        """Connect; *log* is called with lines for the administrator.

        Raises:
            SbusError: the bus is not running, the address is invalid, or the bus rejects the subscription.
        """
        bus = await AsyncBus.connect(
            address, scope=scope, timeout=None, reconnect=True, queue_packets=_QUEUE_PACKETS, overflow=Overflow.DISCARD
        )
        return cls(bus, await bus.subscribe(request_key), log)

    async def publish(self, key: str, event: str, attributes: Attributes) -> None:
        """Publish one message of the feed; wait while the bus is unavailable or applies backpressure."""
        message: Attributes = {"event": event, "time": round(time.time(), 6), **attributes}
        await self.send(key, json.dumps(message, separators=(",", ":")).encode())

    async def send(self, key: str, payload: bytes) -> None:
        """Publish one payload, as :meth:`publish`."""
        await self._bus.publish(key, payload)

    async def receive(self) -> str:
        """Wait for the next event, and return it: ``request`` or ``reconnect``."""
        match await self._requests.receive():
            case Message():
                self.requests += 1
            case Gap(lost):
                # 0 means an unknown number: a request may be among them, and an unnecessary snapshot does no harm.
                self.requests += max(1, lost)
            case _:
                self.reconnects += 1
                self._log("reconnected to the bus")
                return "reconnect"
        return "request"

    async def close(self) -> None:
        """Close the connection."""
        await self._bus.close()

    def _note_refusal(self, refusal: RemoteRefusal) -> None:
        """Count a rejected publication, and log it with a rate limit."""
        self.refused += 1
        count = self._refusals.count()
        if count is not None:
            self._log(f"{refusal} ({count} so far)")
