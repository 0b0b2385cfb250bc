"""The relay's place on its host's bus: joined while the bus is there, and again when it is back. Spec: sbus-relay(8), "On the bus"."""

from __future__ import annotations

import asyncio
from collections import Counter

from sbusd.client.rpc.envelopes import read_envelope
from sbusd.config.relay import RelaySettings
from sbusd.protocol.errors import SbusError
from sbusd.protocol.peers import parse_address
from sbusd.relay.bus.callers import Callers
from sbusd.relay.bus.link import RelayBus
from sbusd.relay.bus.services import Services
from sbusd.relay.concurrency_limit import Allowance
from sbusd.relay.log_messages import BUS_AWAY, BUS_JOINED, BUS_TAKEN, RelayLog
from sbusd.relay.message_model import Message
from sbusd.relay.queue_handler import Desk
from sbusd.relay.redis import names
from sbusd.relay.redis.store import Store

AGAIN_SECONDS = 1.0
"""How long a bus that is away is left alone: one that is started anew is back in less."""

COUNT_SECONDS = 1.0
"""How often what was counted is written down."""

BATCH = 64
"""Answers taken at a time."""

_TIMEOUT_SECONDS = 10.0


class Join:
    """One relay on one bus: :meth:`run`, :meth:`hand_out` and :meth:`count` it beside each other, each again after RedisAwayError."""

    def __init__(self, twin: int, settings: RelaySettings, *, store: Store, desk: Desk, journal: RelayLog) -> None:
        """*twin* is this host's; the requests of other hosts that *desk* has go to the bus's services from now on."""
        self.bus: RelayBus | None = None
        """The connection while the relay is joined."""
        self._twin = twin
        self._address = settings.bus
        self._store = store
        self._journal = journal
        self._is_away = False
        self._left = ""
        self._counted: Counter[str] = Counter()
        self.callers = Callers(read_envelope, desk, names.answers(store.relay), Allowance(settings.bus_calls, settings.bus_bytes))
        self._services = desk.services = Services(twin, settings, self, store=store, desk=desk, journal=journal)

    async def run(self) -> None:
        """Be joined until cancelled."""
        try:
            while True:
                reason = await self._stay()
                if not self._is_away:
                    self._is_away = True
                    self._journal.record(BUS_AWAY, bus=self._address, reason=reason)
                await asyncio.sleep(AGAIN_SECONDS)
        finally:
            await self._services.close()

    async def leave(self, bus: RelayBus, reason: str) -> None:
        """End the connection *bus*, and make a new one; *reason* says why."""
        if bus is self.bus:
            self.bus, self._left = None, reason
            await bus.close()

    async def hand_out(self) -> None:
        """Hand answers to the calls that they are for, until cancelled. Raises RedisAwayError."""
        while True:
            raws = await self._store.take_answers(BATCH)
            if orphaned := sum(not self.callers.hand(Message.parse(raw)) for raw in raws):
                await self._store.count("answers-orphaned", orphaned)
            if raws:
                await self._store.answered(len(raws))

    async def count(self) -> None:
        """Write down what becomes of the calls of users, until cancelled. Raises RedisAwayError."""
        while True:
            # A copy: while one is written down, calls of another kind may be counted for the first time.
            for name, number in tuple(self.callers.counts.items()):
                if more := number - self._counted[name]:
                    await self._store.count(f"bus-{name.replace('_', '-')}", more)
                    self._counted[name] = number
            await asyncio.sleep(COUNT_SECONDS)

    async def _stay(self) -> str:
        """Be joined as long as the bus is there; return why it is not."""
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
        is_told = False
        while rivals := await bus.rivals(self._twin):
            if not is_told:
                is_told = True
                self._is_away = False
                self._journal.record(BUS_TAKEN, bus=self._address, connection=rivals[0].connection, uid=rivals[0].uid, pid=rivals[0].pid)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _serve(self, bus: RelayBus) -> None:
        """Serve the bus's users, unless another relay has begun in the same moment. Raises what ended it."""
        ready = asyncio.Event()
        serving = asyncio.ensure_future(bus.relay(self.callers, ready.set))
        waiting = asyncio.ensure_future(ready.wait())
        try:
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if ready.is_set():
                own = parse_address(await bus.address)
                if any(rival.connection < own for rival in await bus.rivals(self._twin)):
                    return
                self._is_away = False
                self._journal.record(BUS_JOINED, bus=self._address)
            await serving
        finally:
            for task in (serving, waiting):
                task.cancel()
            await asyncio.gather(serving, waiting, return_exceptions=True)
