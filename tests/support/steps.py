"""Steps of relays in Redis, within the test's own process, before or after which something is killed."""

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

from sbusd.config.relay import PeerSettings, RelaySettings
from sbusd.relay.log_messages import RelayLog
from sbusd.relay.redis import names as queues
from sbusd.relay.service import Relay
from tests.support.relays import RedisServer, answer_to, data_of, free_address, request, shared_key
from tests.support.towns import FIRST, SECOND

Blow = Callable[[Relay, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""What happens at a step, given the relay that takes it and what asks Redis again; its result is what the relay is told."""


async def end_of_relay(relay: Relay, _ask: Callable[[], Awaitable[Any]]) -> Any:
    """Let *relay* do nothing more in Redis, and nobody hear of it."""

    async def never(*_words: Any) -> Any:
        return await asyncio.Event().wait()

    relay._link._execute = never
    return await never()


class Step:
    """One step that a relay takes in Redis, before or after which there is a blow, once."""

    def __init__(self, name: str, blow: Blow = end_of_relay, *, after: bool) -> None:
        self.name = name
        self.after = after
        self.happened = asyncio.Event()
        self._blow = blow

    def watch(self, relay: Relay) -> None:
        """Wait for the step of *relay*."""
        execute = relay._link._execute
        names = {digest: name for name, digest in relay._link._digests.items()}

        async def watched(*words: Any) -> Any:
            name = names[words[1]] if words[0] == "EVALSHA" else str(words[0])
            if self.happened.is_set() or name != self.name:
                return await execute(*words)
            if self.after:
                answer = await execute(*words)
                if self.happened.is_set() or answer in (None, []) or (name == "claim" and not answer[1]):
                    return answer
            self.happened.set()
            return await self._blow(relay, lambda: execute(*words))

        relay._link._execute = watched


class World:
    """Two twins whose relays run within the test."""

    def __init__(self, folder: Path, servers: dict[int, RedisServer]) -> None:
        self.addresses = {twin: free_address() for twin in servers}
        self.key = shared_key(folder, uuid.uuid4().hex)
        self.servers = servers
        # Without tries of their own, which would keep the loop, and so the relays, waiting.
        self.clients: dict[int, Any] = {
            twin: redis.Redis(unix_socket_path=str(server.path), retry=Retry(NoBackoff(), 0)) for twin, server in servers.items()
        }
        self.tasks: dict[int, asyncio.Task[None]] = {}
        for client in self.clients.values():
            client.flushall()

    def relay(self, twin: int, ready: asyncio.Event) -> Relay:
        """Return a new relay for *twin*."""
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
        return Relay(twin, settings, RelayLog(), ready=lambda _listen: ready.set())

    async def start(self, twin: int, step: Step | None = None) -> None:
        """Start a relay for *twin*, whose *step* is watched."""
        ready = asyncio.Event()
        relay = self.relay(twin, ready)
        if step is not None:
            step.watch(relay)
        self.tasks[twin] = asyncio.create_task(relay.run())
        async with asyncio.timeout(30):
            await ready.wait()

    async def stop(self, *twins: int) -> None:
        """End the relays of *twins*."""
        for twin in twins:
            # One that is dead at a step hears nothing of its end where asyncio.wait_for() swallows the first cancellation (before 3.12).
            while not self.tasks[twin].done():
                self.tasks[twin].cancel()
                await asyncio.wait([self.tasks[twin]], timeout=5)

    async def send(self, requests: int) -> list[str]:
        """Push so many requests of the first twin to the second; return their return queues."""
        rets = [str(uuid.uuid4()) for _ in range(requests)]
        self.clients[FIRST].rpush(queues.LOCAL, *(json.dumps(request("x", SECOND, ret=ret, try_=1000)) for ret in rets))
        return rets

    async def send_until(self, step: Step) -> list[str]:
        """Push requests, as :meth:`send` does, until *step* has happened.

        Mostly two are enough. On a slow machine a request may miss a step: one whose answer comes before the word that it has arrived is
        never noted as sent.
        """
        rets = await self.send(2)
        for _ in range(30):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(3):
                    await step.happened.wait()
                    return rets
            rets += await self.send(1)
        raise AssertionError(f"{len(rets)} requests, and none took the step {step.name}")

    async def check(self, rets: list[str]) -> None:
        """Wait until nothing is under way; each of *rets* has one answer, and the application had each request once."""
        await self.soon(lambda: all(self.clients[FIRST].llen(ret) for ret in rets), "the answers")
        under_way = (queues.LOCAL, queues.REMOTE, queues.REPLY, queues.BACKLOG, queues.TWINS)
        await self.soon(lambda: not any(client.exists(*under_way) for client in self.clients.values()), "the end of all")
        await self.stop(FIRST, SECOND)
        for ret in rets:
            (answer,) = [json.loads(raw) for raw in self.clients[FIRST].lrange(ret, 0, -1)]
            assert (data_of(answer), answer["err"]) == (b"once", "")
        assert int(self.clients[SECOND].hget(queues.COUNTERS, "requests-delivered")) == len(rets)

    async def soon(self, found: Callable[[], Any], what: str) -> Any:
        """Return what *found* returns when that is true."""
        end = time.monotonic() + 30
        while True:
            with contextlib.suppress(redis.ConnectionError):  # it may be down
                if value := found():
                    return value
            assert time.monotonic() < end, f"in vain waited for: {what}; there are {self._left()}"
            await asyncio.sleep(0.01)

    def _left(self) -> dict[int, list[str]]:
        """Return what is left in each Redis."""
        return {twin: sorted(key.decode() for key in client.keys("msgbus.*")) for twin, client in self.clients.items()}

    async def serve(self) -> None:
        """Answer requests as an application does, for ever."""
        client = self.clients[SECOND]
        while True:
            # Redis is killed between two turns of the loop, and so never between the two commands.
            with contextlib.suppress(redis.ConnectionError):
                raw = client.lpop("msgbus.x")
                if raw:
                    asked = json.loads(raw)
                    client.rpush(asked["ret"], json.dumps(answer_to(asked, b"once")))
            await asyncio.sleep(0.01)
