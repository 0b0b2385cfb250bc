"""The relay: queues, sender, HTTP server and timers, until a signal ends it. Spec: sbus-relay(8)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

from sbus_programs.config.hosts import split_address
from sbus_programs.config.relay import PORT, RelaySettings
from sbus_programs.systemd.event_loop import report_exhaustion
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.relay.bus.membership import BusMembership
from sbus_services.relay.http.authentication import Credentials, make_authentication
from sbus_services.relay.http.client import HttpClient
from sbus_services.relay.http.connections import protocol_factory
from sbus_services.relay.http.limits import ConnectionLimiter
from sbus_services.relay.http.server import HttpServer
from sbus_services.relay.log_messages import (
    FAULT,
    NOT_DURABLE,
    PAUSED,
    RECOVERED,
    REDIS_AVAILABLE,
    REDIS_UNAVAILABLE,
    RESOLVER_UNAVAILABLE,
    STARTED,
    STOPPED,
    UNAUTHENTICATED,
)
from sbus_services.relay.queue_handler import QueueHandler
from sbus_services.relay.redis import names
from sbus_services.relay.redis.client import (
    QUESTION,
    RedisClient,
    RedisUnavailableError,
    UnsuitableRedisError,
    check_server,
    durability_problem,
)
from sbus_services.relay.redis.store import MessageStore
from sbus_services.relay.resolver import make_resolver, watch_changes
from sbus_services.relay.sender import AttemptObserver, AttemptPublisher, Sender

BATCH = 64
"""Messages taken at a time: few round trips to Redis, and quick recovery after a crash."""

RETRY_SECONDS = 0.25
"""Pause before the next attempt while Redis is unavailable."""

EXPIRY_SECONDS = 0.5
"""Interval between searches for expired requests; ``exp`` is in seconds."""


class Relay:
    """One relay. Await :meth:`run` within a running loop; cancel it to stop."""

    def __init__(
        self,
        twin: int,
        settings: RelaySettings,
        journal: LimitedLog,
        *,
        ready: Callable[[str], object] = lambda _listen: None,
        alive: Callable[[], object] = lambda: None,
        observer: AttemptObserver = lambda _attempt: None,
        charged: Callable[[int], int] = int,
    ) -> None:
        """*ready* is called with the listen address; *alive* is called repeatedly while the loop runs.

        *charged* returns the user of this host that is charged for a uid, such as `ChargedUsers.of`.

        Raises:
            ConfigError: a key or a certificate is invalid.
            InvalidRedisError: ``redis`` is invalid.
        """
        self._twin = twin
        self._settings = settings
        self._journal = journal
        self._ready = ready
        self._alive = alive
        self._credentials = Credentials(settings, journal)
        self._keys = self._credentials.keys
        self._redis = RedisClient(settings.redis)
        self._store = MessageStore(self._redis, settings, uuid.uuid4().hex)
        self._authentication = make_authentication(settings, twin, self._keys)
        self._handler = QueueHandler(twin, settings, self._store, journal, wake=self._wake)
        self._observer = observer
        self._publisher = AttemptPublisher(settings.bus, self._store.count, observer) if settings.bus else None
        self._membership = (
            BusMembership(twin, settings, store=self._store, handler=self._handler, journal=journal, charged=charged)
            if settings.bus
            else None
        )
        self._sender: Sender | None = None
        self._unavailable_since: float | None = None
        self._is_known = asyncio.Event()

    async def run(self) -> None:
        """Relay until cancelled.

        Raises:
            OSError: cannot listen on the address.
            UnsuitableRedisError: the server is not one that the relay can use.
        """
        resolver = make_resolver(
            self._settings, lambda reason: self._journal.record_limited(RESOLVER_UNAVAILABLE, "resolver", reason=reason)
        )
        client = HttpClient(self._twin, self._settings, self._keys, tls=lambda: self._credentials.client)
        self._sender = Sender(
            self._settings,
            self._store,
            self._handler,
            client=client,
            resolver=resolver,
            journal=self._journal,
            observer=self._publisher.publish if self._publisher is not None else self._observer,
            call_of=self._membership.calls.digest_of if self._membership is not None else lambda _uid: None,
        )
        self._handler.sender = self._sender
        try:
            async with self._listening() as listen, asyncio.TaskGroup() as tasks:
                self._log_started(listen)
                for queue in names.QUEUES:
                    tasks.create_task(self._repeat(functools.partial(self._serve, queue)))
                tasks.create_task(self._repeat(self._sender.run))
                tasks.create_task(self._repeat(self._expire))
                tasks.create_task(self._repeat(self._live))
                tasks.create_task(self._repeat(self._credentials.run))
                if self._publisher is not None:
                    tasks.create_task(self._repeat(self._publisher.run))
                if self._membership is not None:
                    for work in (self._membership.run, self._membership.deliver_answers, self._membership.count):
                        tasks.create_task(self._repeat(work))
                tasks.create_task(self._repeat(functools.partial(watch_changes, self.hasten)))
                self._ready(listen)
                try:
                    await asyncio.Event().wait()
                finally:
                    self._redis.stop()
        except* UnsuitableRedisError as refused:
            raise UnsuitableRedisError(f"{self._settings.redis}: {refused.exceptions[0]}") from None
        finally:
            await client.close()
            await resolver.close()
            await self._redis.close()
            self._journal.record(STOPPED, twin=self._twin)

    def reload(self) -> None:
        """Read certificates and keys again."""
        self._credentials.reload()

    async def hasten(self) -> None:
        """Retry waiting messages at once: the network has changed."""
        with contextlib.suppress(RedisUnavailableError):
            await self._store.hasten(1_000)
        self._wake()

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[str]:
        """Listen for remote hosts; yield the address."""
        settings = self._settings
        host, port = split_address(settings.listen or f"{'[::]' if settings.is_authenticated else '127.0.0.1'}:{PORT}") or ("", 0)
        handler = HttpServer(self._twin, settings, self._store, self._authentication, self._journal, keys=self._keys)
        report_exhaustion(lambda reason: self._journal.record_limited(PAUSED, "", reason=reason))
        limiter = ConnectionLimiter(settings, handler.groups, handler.report_rejection)
        http = handler.server()
        # "::" means IPv4 too.
        server = await asyncio.get_running_loop().create_server(
            protocol_factory(limiter, http, lambda: self._credentials.server, settings.body_timeout),
            [host] if host != "::" else ["0.0.0.0", "::"],
            port,
            reuse_address=True,
            backlog=128,
        )
        try:
            bound = server.sockets[0].getsockname()
            yield f"[{host}]:{bound[1]}" if ":" in host else f"{host}:{bound[1]}"
        finally:
            # Before Python 3.12, closing a server leaks connections that asyncio has accepted but not yet attached to the server.
            for listening in server.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
            limiter.close()
            try:
                await asyncio.sleep(0)
            finally:
                server.close()
            http.pre_shutdown()
            await http.shutdown(1.0)

    def _log_started(self, listen: str) -> None:
        """Log the start, and how remote hosts are authenticated."""
        self._journal.record(STARTED, twin=self._twin, redis=self._settings.redis, listen=listen, trust=self._authentication.trust)
        if not self._settings.is_authenticated:
            self._journal.record(UNAUTHENTICATED, listen=listen)

    async def _serve(self, queue: str) -> None:
        """Process the messages of *queue*."""
        await self._is_known.wait()  # other relays would recover the messages of a relay without a lease
        while True:
            for raw in await self._store.take(queue, BATCH):
                await self._handler.take(queue, raw)
            self._log_redis_available()

    def _wake(self) -> None:
        """Have messages that are due sent at once."""
        if self._sender is not None:
            self._sender.wake()

    async def _expire(self) -> None:
        """Respond to expired requests."""
        while True:
            while await self._handler.expire(BATCH) >= BATCH:
                await asyncio.sleep(0)
            await asyncio.sleep(EXPIRY_SECONDS)

    async def _live(self) -> None:
        """Renew the lease of this relay, and recover the messages of relays whose lease has expired."""
        await self._check_server()
        await self._check_durability()
        while True:
            recovered = await self._store.live()
            self._is_known.set()
            if recovered:
                self._journal.record(RECOVERED, messages=recovered)
            self._alive()
            await asyncio.sleep(self._settings.lease / 4)

    async def _check_server(self) -> None:
        """Raise UnsuitableRedisError if this server can never serve the relay."""
        try:
            check_server(await self._redis.command("INFO"))
        except RedisUnavailableError:
            return  # it is not there, which the caller notices, or it does not disclose this to this user

    async def _check_durability(self) -> None:
        """Log that a crash of Redis can lose messages, if its settings say so. Redis may have been restarted with other ones."""
        try:
            problem = durability_problem(await self._redis.command(*QUESTION))
        except RedisUnavailableError:
            return  # it is not there, which the caller notices, or it does not disclose its settings to this user
        if problem:
            self._journal.record(NOT_DURABLE, redis=self._settings.redis, reason=problem)

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        """Repeat *work* until cancelled, whatever it raises: unprocessed messages are still in Redis."""
        while True:
            try:
                await work()
            except RedisUnavailableError as error:
                if self._unavailable_since is None:
                    self._unavailable_since = time.monotonic()
                    self._journal.record(REDIS_UNAVAILABLE, reason=str(error))
                self._alive()
            except UnsuitableRedisError:
                raise
            except Exception as mistake:
                self._journal.record_limited(FAULT, "service", where="the service", reason=f"{type(mistake).__name__}: {mistake}")
            await asyncio.sleep(RETRY_SECONDS)

    def _log_redis_available(self) -> None:
        """Log that Redis is available again, if it was not."""
        if self._unavailable_since is not None:
            self._journal.record(REDIS_AVAILABLE, seconds=f"{time.monotonic() - self._unavailable_since:.1f}")
            self._unavailable_since = None
