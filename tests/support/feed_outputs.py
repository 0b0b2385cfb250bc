"""A message bus for feeds in unit tests: it records what is published, and can be slow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from sbus_services.feeds.dbus.bus_output import BusOutput
from sbus_services.feeds.netlink.entries import Attributes

WAIT_SECONDS = 60.0
"""When a test that waits fails, on a machine however slow."""


class RecordingOutput(BusOutput):
    """Records messages; publishing waits while ``is_open`` is not set."""

    def __init__(self) -> None:
        self.requests = self.refused = self.reconnects = 0
        self.published: list[tuple[str, dict[str, Any]]] = []
        self.events: asyncio.Queue[str] = asyncio.Queue()
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.arrival = asyncio.Event()

    async def publish(self, key: str, event: str, attributes: Attributes) -> None:
        await self.send(key, json.dumps({"event": event, **attributes}).encode())

    async def send(self, key: str, payload: bytes) -> None:
        await self.is_open.wait()
        self.published.append((key, json.loads(payload)))
        self.arrival.set()

    async def receive(self) -> str:
        event = await self.events.get()
        self.requests += event == "request"
        return event

    async def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until *condition* holds after some message."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                self.arrival.clear()
                await self.arrival.wait()

    def events_of(self, key: str) -> list[str]:
        """Return the events published to *key*, in order."""
        return [payload["event"] for published, payload in self.published if published == key]

    def last(self, key: str) -> dict[str, Any]:
        """Return the last message to *key*; empty without one."""
        return next((payload for published, payload in reversed(self.published) if published == key), {})

    def take(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what was published since the last call."""
        taken, self.published = self.published, []
        return taken
