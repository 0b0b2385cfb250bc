"""Collects all metrics for a scrape: asks the bus, once for all scrapes that wait, and counts messages by a tap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from sbus import AsyncBus, NoBus, Overflow, TimedOut
from sbus.asyncio.look_ups import LookUps
from sbus.bus_documents import BadResponseError
from sbus.errors import RemoteRefusal
from sbus.items import Gap, Reconnected, TapRecord
from sbus.protocol.credentials import MAX_NAME_BYTES
from sbus.protocol.errors import SbusError
from sbus_programs.backoff import Attempts
from sbus_programs.config.users import ChargedUsers
from sbus_services.metrics import definitions
from sbus_services.metrics.families import Family, bus_families, down_families, labelled, user_labels
from sbus_services.metrics.snapshot import NotPermittedError, ask_async

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


BUS_SECONDS = 8.0
"""Time limit for the bus. Prometheus itself waits for 10 s by default."""

REASONS = ("no-bus", "refused", "timeout", "response")
"""Why a scrape failed: the bus does not run, it refused, it was too slow, or its response was not understood."""


class Collector:
    """Collects the metrics of the bus at *address*. *failed* gets the reason, one of REASONS, and the words of each failure. *charged*
    knows which ids are subordinate ones."""

    def __init__(
        self, address: str, max_users: int, prefixes: KeyPrefixes, failed: Callable[[str, str], object], charged: ChargedUsers
    ) -> None:
        self.failures = dict.fromkeys(REASONS, 0)
        self._address = address
        self._max_users = max_users
        self._prefixes = prefixes
        self._failed = failed
        self._charged = charged
        self._look_ups = LookUps(BUS_SECONDS)
        self._running: asyncio.Task[tuple[Family, ...]] | None = None

    async def collect(self) -> tuple[Family, ...]:
        """Return all metrics. Scrapes at the same time share one request to the bus."""
        if self._running is None:
            self._running = asyncio.ensure_future(self._collect())
            self._running.add_done_callback(self._ended)
        # Not cancelled with this scrape: others may wait for it.
        return await asyncio.shield(self._running)

    def _ended(self, _task: asyncio.Task[tuple[Family, ...]]) -> None:
        """Have the next scrape ask again."""
        self._running = None

    async def _collect(self) -> tuple[Family, ...]:
        """Ask the bus."""
        started = time.monotonic()
        try:
            found = await self._ask(started)
        except TimeoutError:
            found = self._failure("timeout", f"no response within {BUS_SECONDS:g} s", started)
        except TimedOut as error:
            found = self._failure("timeout", str(error), started)
        except BadResponseError as error:
            found = self._failure("response", str(error), started)
        except (NotPermittedError, RemoteRefusal) as error:
            found = self._failure("refused", str(error), started)
        except (NoBus, SbusError, OSError) as error:
            found = self._failure("no-bus", str(error), started)
        return (*found, labelled(definitions.SCRAPE_FAILURES, self.failures), *self._prefixes.families())

    async def _ask(self, started: float) -> tuple[Family, ...]:
        """Return what the bus answers. Raises TimeoutError, SbusError, OSError."""
        async with asyncio.timeout(BUS_SECONDS):
            async with AsyncBus.connect(self._address, timeout=BUS_SECONDS, name="sbus-metrics") as bus:
                snapshot = await ask_async(bus, self._max_users, self._charged.ids.__contains__)
            names = await self._look_ups.run(0, partial(user_labels, snapshot.chosen))
        return tuple(bus_families(snapshot, names, time.monotonic() - started))

    def _failure(self, reason: str, words: str, started: float) -> tuple[Family, ...]:
        """Count and report a failure, and return what is known nevertheless."""
        self.failures[reason] += 1
        self._failed(reason, words)
        return tuple(down_families(time.monotonic() - started))
