"""The relay's connection to its host's bus, restored whenever the bus is available again. Spec: sbus-relay(8), "On the bus"."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from sbus.protocol.errors import SbusError
from sbus.protocol.keys import parse_connection_address
from sbus_programs.config.relay import RelaySettings
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.relay.bus.client import ConcurrencyLimit, RelayBus
from sbus_services.relay.bus.incoming_calls import BusServices
from sbus_services.relay.bus.outgoing_calls import OutgoingCalls
from sbus_services.relay.log_messages import BUS_JOINED, BUS_TAKEN, BUS_UNAVAILABLE
from sbus_services.relay.message_model import RelayMessage
from sbus_services.relay.queue_handler import QueueHandler
from sbus_services.relay.redis import names
from sbus_services.relay.redis.store import MessageStore

RETRY_SECONDS = 1.0
"""Pause before the next attempt to connect; a restart of the bus takes less."""

COUNT_SECONDS = 1.0
"""Interval at which counters are saved."""

BATCH = 64
"""Responses taken at a time."""

_TIMEOUT_SECONDS = 10.0


class BusMembership:
    """One relay on one bus. Run :meth:`run`, :meth:`deliver_answers` and :meth:`count` concurrently.

    Repeat each after RedisUnavailableError.
    """

    def __init__(
        self,
        twin: int,
        settings: RelaySettings,
        *,
        store: MessageStore,
        handler: QueueHandler,
        journal: LimitedLog,
        charged: Callable[[int], int],
    ) -> None:
        """*twin* is the number of this host; *charged* returns the user that is charged for a uid.

        From now on *handler* passes requests of remote hosts to the services of the bus."""
        self.bus: RelayBus | None = None
        """The connection while the relay is joined."""
        self._twin = twin
        self._address = settings.bus
        self._store = store
        self._journal = journal
        self._is_unavailable = False
        self._left = ""
        self._counted: Counter[str] = Counter()
        self.calls = OutgoingCalls(handler, names.answers(store.relay), ConcurrencyLimit(settings.bus_calls, settings.bus_bytes), charged)
        self._services = handler.services = BusServices(twin, settings, self, store=store, handler=handler, journal=journal)

    async def run(self) -> None:
        """Stay joined until cancelled."""
        try:
            while True:
                reason = await self._stay()
                if not self._is_unavailable:
                    self._is_unavailable = True
                    self._journal.record(BUS_UNAVAILABLE, bus=self._address, reason=reason)
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            await self._services.close()

    async def reconnect(self, bus: RelayBus, reason: str) -> None:
        """Close the connection *bus*, so that a new one is made; *reason* is logged."""
        if bus is self.bus:
            self.bus, self._left = None, reason
            await bus.close()

    async def deliver_answers(self) -> None:
        """Deliver responses to their calls until cancelled. Raises RedisUnavailableError."""
        while True:
            raws = await self._store.take_answers(BATCH)
            if orphaned := sum(not self.calls.deliver(RelayMessage.parse(raw)) for raw in raws):
                await self._store.count("answers-orphaned", orphaned)
            if raws:
                await self._store.answered(len(raws))

    async def count(self) -> None:
        """Save the counters of calls until cancelled. Raises RedisUnavailableError."""
        while True:
            # A copy: a new counter may appear while one is saved.
            for name, number in tuple(self.calls.counts.items()):
                if more := number - self._counted[name]:
                    await self._store.count(f"bus-{name.replace('_', '-')}", more)
                    self._counted[name] = number
            await asyncio.sleep(COUNT_SECONDS)

    async def _stay(self) -> str:
        """Stay joined while the bus is available; return why it is not."""
        try:
            async with RelayBus.connect(self._address, timeout=_TIMEOUT_SECONDS) as bus:
                self.bus = bus
                while True:
                    await self._wait_for_place(bus)
                    await self._serve(bus)
        except (SbusError, OSError) as error:
            reason, self._left = self._left or str(error), ""
            return reason
        finally:
            self.bus = None

    async def _wait_for_place(self, bus: RelayBus) -> None:
        """Wait until no other relay serves the bus: each would send every call."""
        is_logged = False
        while rivals := await bus.rivals(self._twin):
            if not is_logged:
                is_logged = True
                self._is_unavailable = False
                self._journal.record(BUS_TAKEN, bus=self._address, connection=rivals[0].connection, uid=rivals[0].uid, pid=rivals[0].pid)
            await asyncio.sleep(RETRY_SECONDS)

    async def _serve(self, bus: RelayBus) -> None:
        """Serve the users of the bus, unless another relay started at the same moment. Raises the error that ends it."""
        ready = asyncio.Event()
        serving = asyncio.ensure_future(bus.dispatch(self.calls, ready.set))
        waiting = asyncio.ensure_future(ready.wait())
        try:
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if ready.is_set():
                own = parse_connection_address((await bus.address).encode())
                if any(rival.connection < own for rival in await bus.rivals(self._twin)):
                    return
                self._is_unavailable = False
                self._journal.record(BUS_JOINED, bus=self._address)
            await serving
        finally:
            for task in (serving, waiting):
                task.cancel()
            await asyncio.gather(serving, waiting, return_exceptions=True)
