"""Relays within the test's own process, with a fault before or after one of their steps in Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from sbus_programs.config.relay import PeerSettings, RelaySettings
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.relay.redis import names as queues
from sbus_services.relay.service import Relay
from tests.support.bus_hosts import FIRST, SECOND
from tests.support.relays import WAIT_SECONDS, RedisServer, answer_to, data_of, free_address, request, shared_key

Fault = Callable[[Relay, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Called at a step with its relay and a function that runs the Redis command; returns the result for the relay."""


async def kill_relay(relay: Relay, _ask: Callable[[], Awaitable[Any]]) -> Any:
    """Stop *relay* as if killed: it runs no further Redis command."""

    async def never(*_words: Any) -> Any:
        return await asyncio.Event().wait()

    relay._redis._execute = never
    return await never()


class Step:
    """One step of a relay in Redis, with a fault before or after it, once."""

    def __init__(self, name: str, fault: Fault = kill_relay, *, after: bool) -> None:
        self.name = name
        self.after = after
        self.happened = asyncio.Event()
        self._fault = fault

    def watch(self, relay: Relay) -> None:
        """Watch *relay* for the step."""
        execute = relay._redis._execute
        names = {digest: name for name, digest in relay._redis._digests.items()}

        async def watched(*words: Any) -> Any:
            name = names[words[1]] if words[0] == "EVALSHA" else str(words[0])
            if self.happened.is_set() or name != self.name:
                return await execute(*words)
            if self.after:
                answer = await execute(*words)
                if self.happened.is_set() or answer in (None, []) or (name == "claim" and not answer[1]):
                    return answer
            self.happened.set()
            return await self._fault(relay, lambda: execute(*words))

        relay._redis._execute = watched


class RelayPair:
    """Two relays that run within the test."""

    def __init__(self, folder: Path, servers: dict[int, RedisServer]) -> None:
        self.addresses = {twin: free_address() for twin in servers}
        self.key = shared_key(folder, uuid.uuid4().hex)
        self.servers = servers
        # Without retries, which would block the loop and so the relays.
        self.clients: dict[int, Any] = {
            twin: redis.Redis(unix_socket_path=str(server.path), retry=Retry(NoBackoff(), 0)) for twin, server in servers.items()
        }
        self.tasks: dict[int, asyncio.Task[None]] = {}
        for client in self.clients.values():
            client.flushall()

    def relay(self, twin: int, ready: asyncio.Event) -> Relay:
        """Return a new relay of host *twin*."""
        (other,) = self.servers.keys() - {twin}
        settings = RelaySettings(
            twin=twin,
            redis=str(self.servers[twin].path),
            listen=self.addresses[twin],
            retry_interval=0.1,
            request_timeout=0.3,
            lease=0.4,
            bus="",
            peers=(PeerSettings(other, self.addresses[other], str(self.key)),),
        )
        return Relay(twin, settings, LimitedLog("sbus-relay"), ready=lambda _listen: ready.set())

    async def start(self, twin: int, step: Step | None = None) -> None:
        """Start a relay of host *twin*, watched for *step*."""
        ready = asyncio.Event()
        relay = self.relay(twin, ready)
        if step is not None:
            step.watch(relay)
        self.tasks[twin] = asyncio.create_task(relay.run())
        async with asyncio.timeout(WAIT_SECONDS):
            await ready.wait()

    async def stop(self, *twins: int) -> None:
        """Stop the relays of *twins*."""
        for twin in twins:
            # Cancel repeatedly: before Python 3.12 asyncio.wait_for() may swallow the first cancellation.
            while not self.tasks[twin].done():
                self.tasks[twin].cancel()
                await asyncio.wait([self.tasks[twin]], timeout=5)

    async def send(self, requests: int) -> list[str]:
        """Push *requests* requests from the first host to the second; return their return queues."""
        rets = [str(uuid.uuid4()) for _ in range(requests)]
        self.clients[FIRST].rpush(queues.LOCAL, *(json.dumps(request("x", SECOND, ret=ret, try_=1000)) for ret in rets))
        return rets

    async def send_until(self, step: Step) -> list[str]:
        """Push requests, as :meth:`send` does, until *step* has happened.

        Usually two suffice. On a slow machine a request may skip a step: if its response arrives first, it is never recorded as sent.
        """
        rets = await self.send(2)
        for _ in range(100):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(3):
                    await step.happened.wait()
                    return rets
            rets += await self.send(1)
        raise AssertionError(f"{len(rets)} requests, and none took the step {step.name}")

    async def check(self, rets: list[str]) -> None:
        """Wait until no message is in progress; check that each of *rets* has one response, and each request was delivered once."""
        await self.soon(lambda: all(self.clients[FIRST].llen(ret) for ret in rets), "the answers")
        under_way = (queues.LOCAL, queues.REMOTE, queues.REPLY, queues.BACKLOG, queues.TWINS)
        await self.soon(lambda: not any(client.exists(*under_way) for client in self.clients.values()), "the end of all")
        await self.stop(FIRST, SECOND)
        for ret in rets:
            (answer,) = [json.loads(raw) for raw in self.clients[FIRST].lrange(ret, 0, -1)]
            assert (data_of(answer), answer["err"]) == (b"once", "")
        assert int(self.clients[SECOND].hget(queues.COUNTERS, "requests-delivered")) == len(rets)

    async def soon(self, found: Callable[[], Any], what: str) -> Any:
        """Wait until *found* returns a true value, and return it."""
        end = time.monotonic() + WAIT_SECONDS
        while True:
            with contextlib.suppress(redis.ConnectionError):  # it may be down
                if value := found():
                    return value
            assert time.monotonic() < end, f"timed out waiting for: {what}; remaining keys: {self._left()}"
            await asyncio.sleep(0.01)

    def _left(self) -> dict[int, list[str]]:
        """Return the remaining keys in each Redis."""
        return {twin: sorted(key.decode() for key in client.keys("msgbus.*")) for twin, client in self.clients.items()}

    async def serve(self) -> None:
        """Respond to requests as an application does, until cancelled."""
        client = self.clients[SECOND]
        while True:
            # Redis is killed by a callback of the loop, so never between these two commands.
            with contextlib.suppress(redis.ConnectionError):
                raw = client.lpop("msgbus.x")
                if raw:
                    asked = json.loads(raw)
                    client.rpush(asked["ret"], json.dumps(answer_to(asked, b"once")))
            await asyncio.sleep(0.01)
