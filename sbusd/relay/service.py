"""The relay at work: the queues, the sender, the door, the time-keeper, until a signal ends it. Spec: sbus-relay(8)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

from sbusd.config.relay import PORT, RelaySettings, split_address
from sbusd.relay import network_changes
from sbusd.relay.attempt_publisher import BusWitness
from sbusd.relay.attempts import NoWitness, Witness
from sbusd.relay.bus.join import Join
from sbusd.relay.http import handshakes
from sbusd.relay.http.authentication import make_gate, read_keys
from sbusd.relay.http.certificates import server_context
from sbusd.relay.http.client import Courier
from sbusd.relay.http.connections import Connections
from sbusd.relay.http.server import Door
from sbusd.relay.log_messages import (
    FAULT,
    RECOVERED,
    REDIS_AWAY,
    REDIS_BACK,
    RESOLVER_AWAY,
    STARTED,
    STOPPED,
    UNAUTHENTICATED,
    RelayLog,
)
from sbusd.relay.queue_handler import Desk
from sbusd.relay.redis import names
from sbusd.relay.redis.link import RedisAwayError, RedisLink
from sbusd.relay.redis.store import Store
from sbusd.relay.resolver import make_resolver
from sbusd.relay.sender import Sender

BATCH = 64
"""Messages taken at a time: enough to make the way to Redis small, and few enough to be given back quickly."""

AGAIN_SECONDS = 0.25
"""How long a Redis that is away is left alone."""

EXPIRY_SECONDS = 0.5
"""How often requests whose time is over are looked for; ``exp`` is in seconds."""


class Relay:
    """One relay. :meth:`run` it within a running loop, until it is cancelled."""

    def __init__(
        self,
        twin: int,
        settings: RelaySettings,
        journal: RelayLog,
        *,
        ready: Callable[[str], object] = lambda _listen: None,
        alive: Callable[[], object] = lambda: None,
        witness: Witness | None = None,
    ) -> None:
        """*ready* is told the address when other hosts are heard; *alive* is called again and again while the loop turns.

        Raises:
            ConfigError: a key or a certificate is none.
            BadRedisError: ``redis`` names none.
        """
        self._twin = twin
        self._settings = settings
        self._journal = journal
        self._ready = ready
        self._alive = alive
        self._keys = read_keys(settings)
        self._tls: ssl.SSLContext | None = server_context(settings.tls) if settings.tls.is_on else None
        self._link = RedisLink(settings.redis)
        self._store = Store(self._link, settings, uuid.uuid4().hex)
        self._gate = make_gate(settings, twin, self._keys)
        self._desk = Desk(twin, settings, self._store, journal, wake=self._wake)
        self._witness = witness or NoWitness()
        self._told = BusWitness(settings.bus, self._store.count, self._witness.saw) if settings.bus else None
        self._join = Join(twin, settings, store=self._store, desk=self._desk, journal=journal) if settings.bus else None
        self._sender: Sender | None = None
        self._away_since: float | None = None
        self._is_known = asyncio.Event()

    async def run(self) -> None:
        """Relay until cancelled.

        Raises:
            OSError: the address cannot be listened at.
        """
        resolver = make_resolver(self._settings, lambda reason: self._journal.record_limited(RESOLVER_AWAY, "resolver", reason=reason))
        courier = Courier(self._twin, self._settings, self._keys)
        self._sender = Sender(
            self._settings,
            self._store,
            self._desk,
            courier=courier,
            resolver=resolver,
            journal=self._journal,
            witness=self._told or self._witness,
            call_of=self._join.callers.digest_of if self._join is not None else lambda _uid: None,
        )
        self._desk.sends = self._sender
        try:
            async with self._listening() as listen, asyncio.TaskGroup() as tasks:
                self._tell_started(listen)
                for queue in names.QUEUES:
                    tasks.create_task(self._again(functools.partial(self._serve, queue)))
                tasks.create_task(self._again(self._sender.run))
                tasks.create_task(self._again(self._keep_time))
                tasks.create_task(self._again(self._live))
                if self._told is not None:
                    tasks.create_task(self._again(self._told.run))
                if self._join is not None:
                    for work in (self._join.run, self._join.hand_out, self._join.count):
                        tasks.create_task(self._again(work))
                tasks.create_task(self._again(functools.partial(network_changes.watch, self.hasten)))
                self._ready(listen)
                try:
                    await asyncio.Event().wait()
                finally:
                    self._link.stop()
        finally:
            await courier.close()
            await resolver.close()
            await self._link.close()
            self._journal.record(STOPPED, twin=self._twin)

    async def hasten(self) -> None:
        """Try at once what waits: the network has changed."""
        with contextlib.suppress(RedisAwayError):
            await self._store.hasten(1_000)
        self._wake()

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[str]:
        """Listen for other hosts; yields the address."""
        settings = self._settings
        host, port = split_address(settings.listen or f"{'[::]' if settings.is_authenticated else '127.0.0.1'}:{PORT}") or ("", 0)
        door = Door(self._twin, settings, self._store, self._gate, self._journal, keys=self._keys)
        connections = Connections(settings, door.parties, door.refused)
        http = door.server()
        # On "::" other hosts of IPv4 are to be heard too.
        server = await asyncio.get_running_loop().create_server(
            handshakes.factory(connections, http, self._tls, settings.body_timeout),
            [host] if host != "::" else ["0.0.0.0", "::"],
            port,
            reuse_address=True,
            backlog=128,
        )
        try:
            bound = server.sockets[0].getsockname()
            yield f"[{host}]:{bound[1]}" if ":" in host else f"{host}:{bound[1]}"
        finally:
            # Whom asyncio has accepted but not yet attached to its server it forgets, unclosed, when that closes (before Python 3.12).
            for listening in server.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
            connections.close()
            try:
                await asyncio.sleep(0)
            finally:
                server.close()
            http.pre_shutdown()
            await http.shutdown(1.0)

    def _tell_started(self, listen: str) -> None:
        """Tell that it works, and on what its word about other hosts rests."""
        self._journal.record(STARTED, twin=self._twin, redis=self._settings.redis, listen=listen, trust=self._gate.trust)
        if not self._settings.is_authenticated:
            self._journal.record(UNAUTHENTICATED, listen=listen)

    async def _serve(self, queue: str) -> None:
        """Deal with what comes in *queue*."""
        await self._is_known.wait()  # else others, who see no lease, would take it for dead
        while True:
            for raw in await self._store.take(queue, BATCH):
                await self._desk.take(queue, raw)
            self._note_redis_back()

    def _wake(self) -> None:
        """Have sent at once what is due."""
        if self._sender is not None:
            self._sender.wake()

    async def _keep_time(self) -> None:
        """Answer requests whose time is over."""
        while True:
            while await self._desk.expire(BATCH) >= BATCH:
                await asyncio.sleep(0)
            await asyncio.sleep(EXPIRY_SECONDS)

    async def _live(self) -> None:
        """Say that this relay lives, and take over from those that do not."""
        while True:
            recovered = await self._store.live()
            self._is_known.set()
            if recovered:
                self._journal.record(RECOVERED, messages=recovered)
            self._alive()
            await asyncio.sleep(self._settings.lease / 4)

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do *work* for ever, whatever goes wrong: what is not done is still in Redis."""
        while True:
            try:
                await work()
            except RedisAwayError as error:
                if self._away_since is None:
                    self._away_since = time.monotonic()
                    self._journal.record(REDIS_AWAY, reason=str(error))
                self._alive()
            except Exception as mistake:
                self._journal.record_limited(FAULT, "service", where="the service", reason=f"{type(mistake).__name__}: {mistake}")
            await asyncio.sleep(AGAIN_SECONDS)

    def _note_redis_back(self) -> None:
        """Tell that Redis is back, if it was away."""
        if self._away_since is not None:
            self._journal.record(REDIS_BACK, seconds=f"{time.monotonic() - self._away_since:.1f}")
            self._away_since = None
