"""The collection of all metrics for a scrape: asks the bus, once for all scrapes that wait at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from sbusd.client import AsyncBus, NoBus, TimedOut
from sbusd.client.asyncio.look_ups import LookUps
from sbusd.client.bus_documents import BadResponseError
from sbusd.client.errors import RemoteRefusal
from sbusd.config.users import ChargedUsers
from sbusd.metrics import definitions
from sbusd.metrics.families import Family, bus_families, down_families, labelled
from sbusd.metrics.key_prefixes import KeyPrefixes
from sbusd.metrics.snapshot import NotPermittedError, ask_async
from sbusd.metrics.user_labels import user_labels
from sbusd.protocol.errors import SbusError

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
