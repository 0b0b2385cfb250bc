"""Requests of other hosts that services of this host's bus run. Spec: sbus-relay(8), "On the bus".

A request is given to the bus at most once: from then on it lies in a list of its own until it is answered, and if the relay dies, it is
answered with an error, for nobody knows whether the service has run it. One that the bus handed to nobody goes to Redis.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from sbusd.client.errors import CallTimeout, NoRecipient, PayloadTooLarge, PeerDisconnected, RemoteError, RemoteRefusal
from sbusd.client.rpc.service import WAITING_PER_USER
from sbusd.config.relay import RelaySettings
from sbusd.protocol.envelope import decode_data, relayed_key
from sbusd.protocol.errors import SbusError
from sbusd.relay.bus.link import RelayBus, RelayedInvocation
from sbusd.relay.concurrency_limit import Allowance
from sbusd.relay.log_messages import BUS_REFUSAL, FAULT, RelayLog
from sbusd.relay.message_model import MAX_ERROR_CHARACTERS, Message
from sbusd.relay.queue_handler import Desk
from sbusd.relay.redis import names
from sbusd.relay.redis.link import RedisAwayError
from sbusd.relay.redis.store import Store

AT_ONCE = WAITING_PER_USER // 4
"""Requests of one twin for one command that a service has at once: it lets four times as many wait, so several relays may call it."""

TWIN_BYTES = 64 << 20
"""Bytes of one twin's requests that are held in memory, each larger than some packets of the bus can be: beyond, they are refused."""

AGAIN_SECONDS = 0.25
"""How long a Redis that is away is left alone."""


ASK_SECONDS = 5.0
"""How long the bus may take to say whether anybody serves a command: it takes microseconds, and when it is started anew a second.
All requests of other hosts wait for it, those for Redis too."""


class Joined(Protocol):
    """Knows whether the relay is joined to its bus."""

    bus: RelayBus | None

    async def leave(self, bus: RelayBus, reason: str) -> None:
        """End the connection *bus*, and make a new one."""


class _Turn:
    """Requests of one twin for one command: places with the service, and how many want one or have it."""

    def __init__(self) -> None:
        self.places = asyncio.Semaphore(AT_ONCE)
        self.wanted = 0


class Services:
    """Has requests run by services of the bus."""

    def __init__(
        self,
        twin: int,
        settings: RelaySettings,
        joined: Joined,
        *,
        store: Store,
        desk: Desk,
        journal: RelayLog,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """*twin* is this host's; *desk* knows how a request is answered."""
        self._twin = twin
        self._settings = settings
        self._joined = joined
        self._store = store
        self._desk = desk
        self._journal = journal
        self._clock = clock
        self._allowance = Allowance(settings.peer_requests, TWIN_BYTES)
        self._turns: dict[tuple[int, str], _Turn] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, raw: bytes, request: Message) -> bool:
        """See to *request*, which is *raw* of the queue of requests, if somebody on the bus serves it. Raises RedisAwayError."""
        bus = self._joined.bus
        if bus is None or not await self._is_served(bus, request.cmd):
            return False
        if crowded := self._allowance.problem(request.src, len(raw)):
            await self._store.count("requests-crowded")
            await self._desk.decline(raw, request, f"busy: {crowded} for requests of host {request.src} on host {self._twin}", names.REMOTE)
            return True
        said, left = await self._engage(raw, request)
        if said == "engaged":
            self._allowance.take(request.src, len(raw))
            task = asyncio.create_task(self._run(bus, raw, request, time.monotonic() + left))
            self._tasks.add(task)
            task.add_done_callback(self._done)
        return True

    async def close(self) -> None:
        """Stop waiting for services. What they had is answered by the next relay."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _is_served(self, bus: RelayBus, command: str) -> bool:
        """Return whether a request for *command* would reach anybody on the bus."""
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return bool(await bus.members(relayed_key(command)))
        except TimeoutError:
            await self._joined.leave(bus, f"no response for {ASK_SECONDS:g} s")
        except RemoteRefusal as refusal:
            self._journal.record_limited(BUS_REFUSAL, "members", bus=self._settings.bus, reason=refusal.said)
        except (SbusError, OSError):
            pass  # The bus has gone, which whoever holds the connection tells.
        return False

    async def _engage(self, raw: bytes, request: Message) -> tuple[str, float]:
        """Take *request* for the bus. Asked again until Redis answers: what nobody knows of would lie there until this relay ends."""
        while True:
            try:
                return await self._store.engage(raw, request)
            except RedisAwayError:
                await asyncio.sleep(AGAIN_SECONDS)

    async def _run(self, bus: RelayBus, raw: bytes, request: Message, end: float) -> None:
        """Have *request* run until *end*, by the monotonic clock, and answer it."""
        try:
            reply = await self._reply(bus, request, end)
            while True:
                try:
                    if reply is None:
                        return await self._desk.hand_over(raw, request, names.BUS)
                    return await self._desk.conclude(raw, reply, names.BUS)
                except RedisAwayError:
                    await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._allowance.give_back(request.src, len(raw))

    async def _reply(self, bus: RelayBus, request: Message, end: float) -> Message | None:
        """Return the answer to *request*, None if nobody has run it."""
        async with self._turn(request.src, request.cmd):
            left = max(0.0, end - time.monotonic())
            try:
                asked = RelayedInvocation(request.cmd, decode_data(request.dat), left, twin=self._twin, source=request.src)
                return self._answer(request, base64.b64encode(await bus.call_relayed(asked)).decode("ascii"), "")
            except NoRecipient:
                return None
            except (SbusError, OSError) as error:
                return self._answer(request, "", self._words(error, request.cmd))

    @contextlib.asynccontextmanager
    async def _turn(self, twin: int, command: str) -> AsyncIterator[None]:
        """Wait until *twin* may have one more request for *command* with its service. What nobody waits for any more is forgotten."""
        turn = self._turns.setdefault((twin, command), _Turn())
        turn.wanted += 1
        try:
            async with turn.places:
                yield
        finally:
            turn.wanted -= 1
            if not turn.wanted:
                del self._turns[twin, command]

    def _answer(self, request: Message, dat: str, err: str) -> Message:
        """Return the answer to *request*."""
        reply = request.with_(src=self._twin, dst=(request.src,), dat=dat, err=err[:MAX_ERROR_CHARACTERS], now=int(self._clock()))
        size = len(reply.encode())
        if size > self._settings.body_bytes:
            return self._answer(
                request, "", f"the response has {size} bytes; the limit on host {self._twin} is {self._settings.body_bytes}"
            )
        return reply

    def _words(self, error: Exception, command: str) -> str:
        """Return what the other host is told of *error*."""
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
        """Tell of a mistake."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._journal.record_limited(FAULT, "services", where="the bus services", reason=f"{type(error).__name__}: {error}")
