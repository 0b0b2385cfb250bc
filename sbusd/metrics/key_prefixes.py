"""The messages with a prefix of keys, counted by a tap: sbus-protocol(7) §6, ``!/tap``. A tap is not a recipient of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sbusd.backoff import Attempts
from sbusd.client import AsyncBus, Overflow
from sbusd.client.items import Gap, Reconnected, TapRecord
from sbusd.metrics import definitions
from sbusd.metrics.families import Family, labelled
from sbusd.protocol.connection_names import MAX_NAME_BYTES
from sbusd.protocol.errors import SbusError

QUEUE_PACKETS = 16_384
"""Records that wait in the program; the bus has a queue of its own before it."""

QUEUE_BYTES = 16 << 20

ITEMS_PER_TURN = 64
"""Records that are counted before anything else is done."""

OPEN_SECONDS = 10.0
"""Time limit for each request to the bus."""


@dataclass(slots=True)
class PrefixCounts:
    """What is known about the messages with one prefix since the start of the program."""

    messages: int = 0
    payload_bytes: int = 0
    recipients: int = 0
    discarded: int = 0
    missed: int = 0
    interruptions: int = 0
    is_up: int = 0

    def add(self, item: TapRecord | Gap | Reconnected) -> None:
        """Count an item of the tap. A record of anything but a message does not count."""
        if isinstance(item, Gap):
            self.missed += item.lost
            self.interruptions += item.lost == 0
        elif isinstance(item, TapRecord) and item.message is not None:
            self.messages += 1
            self.payload_bytes += len(item.message.payload or b"")
            self.recipients += _whole(item.fields.get("recipients"))
            self.discarded += _whole(item.fields.get("discarded"))


class KeyPrefixes:
    """Counts the messages of each prefix. *failed* gets the prefix and the reason whenever that is not possible."""

    def __init__(self, address: str, prefixes: Sequence[str], failed: Callable[[str, str], object]) -> None:
        self.counts = {prefix: PrefixCounts() for prefix in prefixes}
        self._address = address
        self._failed = failed

    async def run(self) -> None:
        """Count until cancelled."""
        await asyncio.gather(*(self._count(prefix, counts) for prefix, counts in self.counts.items()))

    def families(self) -> Iterator[Family]:
        """Yield the metrics, none without prefixes."""
        if self.counts:
            for metric in (definitions.PREFIX_UP, *definitions.PREFIX_COUNTERS):
                yield labelled(metric, {prefix: getattr(counts, metric.field) for prefix, counts in self.counts.items()})

    async def _count(self, prefix: str, counts: PrefixCounts) -> None:
        """Count the messages of one prefix, and connect again whenever the connection ends."""
        async for _ in Attempts():
            try:
                await self._count_connected(prefix, counts)
            except (SbusError, OSError) as error:
                self._failed(prefix, str(error))
            if counts.is_up:
                counts.is_up = 0
                counts.interruptions += 1

    async def _count_connected(self, prefix: str, counts: PrefixCounts) -> None:
        """Count the messages of one prefix until the connection ends. Raises SbusError, OSError."""
        name = f"sbus-metrics {prefix}".encode()[:MAX_NAME_BYTES].decode("utf-8", "ignore")
        async with AsyncBus.connect(
            self._address, timeout=OPEN_SECONDS, name=name, queue_packets=QUEUE_PACKETS, queue_bytes=QUEUE_BYTES, overflow=Overflow.DISCARD
        ) as bus:
            tap = await bus.tap(prefix)
            counts.is_up = 1
            handled = 0
            while True:
                counts.add(await tap.receive())
                handled += 1
                if handled % ITEMS_PER_TURN == 0:
                    # Scrapes are served in between.
                    await asyncio.sleep(0)


def _whole(value: object) -> int:
    """Return a number of a record, 0 if there is none."""
    return value if isinstance(value, int) else 0
