"""Requests of remote hosts that services on this host's bus run. Spec: sbus-relay(8), "On the bus".

A request is passed to the bus at most once. From then on it stays in a separate list until its response. If the relay dies, the response
is an error, because it is unknown whether the service ran the request. A request that had no recipient on the bus goes to Redis.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from sbus.errors import CallTimeout, NoRecipient, PayloadTooLarge, PeerDisconnected, RemoteError, RemoteRefusal
from sbus.protocol.envelope import decode_data, relayed_key
from sbus.protocol.errors import SbusError
from sbus.rpc.request_queue import WAITING_PER_USER
from sbus_programs.config.relay import RelaySettings
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.relay.bus.client import ConcurrencyLimit, RelayBus, RelayedInvocation
from sbus_services.relay.log_messages import BUS_REFUSAL, FAULT
from sbus_services.relay.message_model import MAX_ERROR_CHARACTERS, RelayMessage
from sbus_services.relay.queue_handler import QueueHandler
from sbus_services.relay.redis import names
from sbus_services.relay.redis.client import RedisUnavailableError
from sbus_services.relay.redis.store import MessageStore

AT_ONCE = WAITING_PER_USER // 4
"""Concurrent requests of one host for one command: a quarter of what a service queues per user, so that several relays may call it."""

TWIN_BYTES = 64 << 20
"""Bytes of one host's requests that are held in memory, because a request can be larger than several packets of the bus.

Further requests are declined.
"""

RETRY_SECONDS = 0.25
"""Pause before the next attempt while Redis is unavailable."""


ASK_SECONDS = 5.0
"""Timeout of the question whether a service is subscribed to a command: it takes microseconds, during a restart of the bus a second.

All requests of remote hosts wait for the answer, including those for Redis.
"""


class Membership(Protocol):
    """Knows whether the relay has joined its bus."""

    bus: RelayBus | None

    async def reconnect(self, bus: RelayBus, reason: str) -> None:
        """Close the connection *bus*, so that a new one is made."""


class _CommandSlots:
    """Slots for the requests of one host for one command, and the number of requests that use or want one."""

    def __init__(self) -> None:
        self.semaphore = asyncio.Semaphore(AT_ONCE)
        self.wanted = 0


class BusServices:
    """Runs requests on services of the bus."""

    def __init__(
        self,
        twin: int,
        settings: RelaySettings,
        membership: Membership,
        *,
        store: MessageStore,
        handler: QueueHandler,
        journal: LimitedLog,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """*twin* is the number of this host; *handler* stores responses."""
        self._twin = twin
        self._settings = settings
        self._membership = membership
        self._store = store
        self._handler = handler
        self._journal = journal
        self._clock = clock
        self._limit = ConcurrencyLimit(settings.peer_requests, TWIN_BYTES)
        self._slots: dict[tuple[int, str], _CommandSlots] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, raw: bytes, request: RelayMessage) -> bool:
        """Run *request*, which is *raw* of the request queue; return False if no service is subscribed. Raises RedisUnavailableError."""
        bus = self._membership.bus
        if bus is None or not await self._is_served(bus, request.cmd):
            return False
        if limit := self._limit.problem(request.src, len(raw)):
            await self._store.count("requests-busy")
            await self._handler.decline(
                raw, request, f"busy: {limit} for requests of host {request.src} on host {self._twin}", names.REMOTE
            )
            return True
        result, left = await self._engage(raw, request)
        if result == "engaged":
            self._limit.acquire(request.src, len(raw))
            task = asyncio.create_task(self._run(bus, raw, request, time.monotonic() + left))
            self._tasks.add(task)
            task.add_done_callback(self._done)
        return True

    async def close(self) -> None:
        """Stop waiting for services. The next relay responds to their requests."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _is_served(self, bus: RelayBus, command: str) -> bool:
        """Return whether a service on the bus is subscribed to *command*."""
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return bool(await bus.members(relayed_key(command)))
        except TimeoutError:
            await self._membership.reconnect(bus, f"no response for {ASK_SECONDS:g} s")
        except RemoteRefusal as refusal:
            self._journal.record_limited(BUS_REFUSAL, "members", bus=self._settings.bus, reason=refusal.said)
        except (SbusError, OSError):
            pass  # Disconnected: the owner of the connection reports it.
        return False

    async def _engage(self, raw: bytes, request: RelayMessage) -> tuple[str, float]:
        """Take *request* for the bus. Repeat until Redis responds: a forgotten request would stay in the list until this relay ends."""
        while True:
            try:
                return await self._store.engage(raw, request)
            except RedisUnavailableError:
                await asyncio.sleep(RETRY_SECONDS)

    async def _run(self, bus: RelayBus, raw: bytes, request: RelayMessage, end: float) -> None:
        """Run *request* until *end*, in monotonic time, and respond to it."""
        try:
            reply = await self._reply(bus, request, end)
            while True:
                try:
                    if reply is None:
                        return await self._handler.hand_over(raw, request, names.BUS)
                    return await self._handler.conclude(raw, reply, names.BUS)
                except RedisUnavailableError:
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._limit.release(request.src, len(raw))

    async def _reply(self, bus: RelayBus, request: RelayMessage, end: float) -> RelayMessage | None:
        """Return the response to *request*, None if no service received it."""
        async with self._slot(request.src, request.cmd):
            left = max(0.0, end - time.monotonic())
            try:
                asked = RelayedInvocation(
                    request.cmd, decode_data(request.dat), left, twin=self._twin, source=request.src, context=request.ctx
                )
                return self._answer(request, base64.b64encode(await bus.call_relayed(asked)).decode("ascii"), "")
            except NoRecipient:
                return None
            except (SbusError, OSError) as error:
                return self._answer(request, "", self._words(error, request.cmd))

    @contextlib.asynccontextmanager
    async def _slot(self, twin: int, command: str) -> AsyncIterator[None]:
        """Wait for a slot for a request of *twin* for *command*. Slots that are not in use are forgotten."""
        slot = self._slots.setdefault((twin, command), _CommandSlots())
        slot.wanted += 1
        try:
            async with slot.semaphore:
                yield
        finally:
            slot.wanted -= 1
            if not slot.wanted:
                del self._slots[twin, command]

    def _answer(self, request: RelayMessage, dat: str, err: str) -> RelayMessage:
        """Return the response to *request*."""
        reply = request.with_(src=self._twin, dst=(request.src,), dat=dat, err=err[:MAX_ERROR_CHARACTERS], now=int(self._clock()), ctx="")
        size = len(reply.encode())
        if size > self._settings.body_bytes:
            return self._answer(
                request, "", f"the response has {size} bytes; the limit on host {self._twin} is {self._settings.body_bytes}"
            )
        return reply

    def _words(self, error: Exception, command: str) -> str:
        """Return the text of *error* for the remote host."""
        here = f"for {command} on host {self._twin}"
        match error:
            case RemoteError():
                return error.words
            case CallTimeout():
                return f"the service {here} did not respond in time; it may have run the request"
            case PeerDisconnected():
                return f"the service {here} ended before it responded; it may have run the request"
            case RemoteRefusal():
                self._journal.record_limited(BUS_REFUSAL, "call", bus=self._settings.bus, reason=error.said)
                return f"the bus rejected a call of its relay {here}"
            case PayloadTooLarge():
                return f"the request {here} is too large for the bus: {error}"
        return f"the relay lost its bus before the service {here} responded; it may have run the request"

    def _done(self, task: asyncio.Task[None]) -> None:
        """Log an unexpected error."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._journal.record_limited(FAULT, "services", where="the bus services", reason=f"{type(error).__name__}: {error}")
