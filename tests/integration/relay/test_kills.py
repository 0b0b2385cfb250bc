"""Relays and Redis that are killed: at each step of a request, and at random; each request has exactly one answer or one error."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from sbusd.config.relay import PeerSettings, RelaySettings
from sbusd.relay import queues
from sbusd.relay.journal import RelayJournal
from sbusd.relay.service import Relay
from tests.support.relays import Host, RedisServer, answer_to, data_of, free_address, pair, request, require_redis, shared_key, wait_for

FIRST, SECOND = 1001, 1002

REQUESTS = int(os.environ.get("SBUS_STORM_REQUESTS", "300"))
"""How many go through the storm of kills; make storm sends 10,000."""


class Step:
    """One step that a relay takes in Redis, before or after which it dies."""

    def __init__(self, name: str, *, after: bool) -> None:
        self.name = name
        self.after = after
        self.happened = asyncio.Event()

    def arm(self, relay: Relay) -> None:
        """Let *relay* die there; it does nothing more in Redis, and nobody hears of it."""
        execute = relay._link._execute
        names = {digest: name for name, digest in relay._link._digests.items()}

        async def dying(*words: Any) -> Any:
            if self.happened.is_set():
                return await asyncio.Event().wait()
            name = names[words[1]] if words[0] == "EVALSHA" else words[1] if words[0] == "EVAL" else str(words[0])
            name = "INCR" if words[0] == "INCR" else name
            if name != self.name:
                return await execute(*words)
            if self.after:
                answer = await execute(*words)
                if answer in (None, []) or (name == "claim" and not answer[1]):
                    return answer
            self.happened.set()
            return await asyncio.Event().wait()

        relay._link._execute = dying


class World:
    """Two twins whose relays run within the test."""

    def __init__(self, folder: Path, servers: dict[int, RedisServer]) -> None:
        self.addresses = {twin: free_address() for twin in servers}
        self.key = shared_key(folder, uuid.uuid4().hex)
        self.servers = servers
        self.clients = {twin: server.client() for twin, server in servers.items()}
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
            request_timeout=1.0,
            lease=0.4,
            bus="",
            peers=(PeerSettings(other, self.addresses[other], str(self.key)),),
        )
        return Relay(twin, settings, RelayJournal({}), ready=lambda _listen: ready.set())

    async def start(self, twin: int, step: Step | None = None) -> None:
        """Start a relay for *twin*."""
        ready = asyncio.Event()
        relay = self.relay(twin, ready)
        if step is not None:
            step.arm(relay)
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

    async def soon(self, found: Callable[[], Any], what: str) -> Any:
        """Return what *found* returns when that is true."""
        end = time.monotonic() + 30
        while not (value := found()):
            assert time.monotonic() < end, f"in vain waited for: {what}"
            await asyncio.sleep(0.01)
        return value

    async def serve(self) -> None:
        """Answer requests as an application does, for ever."""
        client = self.clients[SECOND]
        while True:
            raw = client.lpop("msgbus.x")
            if raw:
                asked = json.loads(raw)
                client.rpush(asked["ret"], json.dumps(answer_to(asked, b"once")))
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, RedisServer]]:
    require_redis()
    made = {twin: RedisServer(tmp_path_factory.mktemp(str(twin))) for twin in (FIRST, SECOND)}
    yield made
    for server in made.values():
        server.kill()


STEPS = [
    *((FIRST, name) for name in ("BLMOVE", "take", "INCR", "dispatch", "claim", "sent", "HGET", "admit", "answer")),
    *((SECOND, name) for name in ("SET", "accept", "BLMOVE", "deliver", "respond", "claim", "sent")),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("twin", "name"), STEPS)
def test_a_relay_that_dies_at_a_step_loses_and_doubles_nothing(
    folder: Path, servers: dict[int, RedisServer], twin: int, name: str, after: bool
) -> None:
    async def run() -> None:
        world = World(folder, servers)
        step = Step(name, after=after)
        for each in (FIRST, SECOND):
            await world.start(each, step if each == twin else None)
        application = asyncio.create_task(world.serve())
        first = world.clients[FIRST]
        rets = [str(uuid.uuid4()) for _ in range(2)]
        first.rpush(queues.LOCAL, *(json.dumps(request("x", SECOND, ret=ret, try_=1000)) for ret in rets))
        async with asyncio.timeout(30):
            await step.happened.wait()
        await world.stop(twin)
        await world.start(twin)
        await world.soon(lambda: all(first.llen(ret) for ret in rets), "the answers")
        under_way = (queues.LOCAL, queues.REMOTE, queues.REPLY, queues.BACKLOG, queues.TWINS)
        await world.soon(lambda: not any(client.exists(*under_way) for client in world.clients.values()), "the end of all")
        application.cancel()
        await world.stop(FIRST, SECOND)
        for ret in rets:
            (answer,) = [json.loads(raw) for raw in first.lrange(ret, 0, -1)]
            assert (data_of(answer), answer["err"]) == (b"once", "")
        assert int(world.clients[SECOND].hget(queues.COUNTERS, "requests-delivered")) == 2

    asyncio.run(run())


class Application(threading.Thread):
    """Serves ``x`` of a host, and loses nothing when its Redis is killed: what it has taken lies in a list of its own."""

    def __init__(self, host: Host) -> None:
        super().__init__(daemon=True)
        self.host = host
        self.ended = threading.Event()

    def run(self) -> None:
        """Serve until told to end."""
        client = self.host.server.client()
        while not self.ended.is_set():
            try:
                raw = client.lindex("application", 0) or client.blmove("msgbus.x", "application", 1, "LEFT", "RIGHT")
                if raw:
                    asked = json.loads(raw)
                    with client.pipeline(transaction=True) as change:
                        change.rpush(asked["ret"], json.dumps(answer_to(asked, data_of(asked))))
                        change.lrem("application", 1, raw)
                        change.execute()
            except redis.RedisError:
                time.sleep(0.01)


PUSH_ONCE = "if redis.call('SET', KEYS[1], 1, 'NX') then redis.call('RPUSH', 'msgbus.system.local', ARGV[1]) end return 1"


def push(host: Host, message: dict[str, Any]) -> None:
    """Push *message* once, however often Redis is killed meanwhile."""

    def pushed() -> bool:
        try:
            with host.server.client() as client:
                return bool(client.eval(PUSH_ONCE, 1, f"pushed:{message['ret']}", json.dumps(message)))
        except redis.RedisError:
            return False

    wait_for(pushed, "a Redis that takes a request")


def kill_something(chance: random.Random, hosts: list[Host]) -> None:
    """Kill a relay or a Redis, wait a little, and start it again."""
    host = chance.choice(hosts)
    if chance.random() < 0.5:
        host.relay.kill()
        time.sleep(chance.random() / 4)
        host.relay.start()
    else:
        host.server.kill()
        time.sleep(chance.random() / 4)
        host.server.start()


def storm(folder: Path, requests: int, kills: int, seed: int) -> None:
    """Send *requests* between two twins through *kills*; check that each has one answer or one error."""
    hosts = pair(folder, FIRST, SECOND, settings='request_timeout = "1s"\nbacklog_messages = 100000\nqueue_messages = 100000\n')
    applications = [Application(host) for host in hosts]
    chance = random.Random(seed)
    try:
        for application in applications:
            application.start()
        sent: dict[str, tuple[Host, int, bytes]] = {}
        done = 0
        for number in range(requests):
            host = hosts[number % 2]
            message = request("x", chance.choice((FIRST, SECOND)), dat=str(number).encode(), exp=900, try_=1000)
            sent[message["ret"]] = (host, message["dst"][0], str(number).encode())
            push(host, message)
            while done * requests < number * kills:
                kill_something(chance, hosts)
                done += 1
        for ret, (host, twin, data) in sent.items():
            check(host, ret, twin, data)
        for host in hosts:
            wait_for(functools.partial(is_idle, host), "the end of all")
        for ret, (host, _, _) in sent.items():
            assert host.redis.exists(ret) == 0, "a second answer"
        assert sum(host.counters().get("requests-answered", 0) for host in hosts) == requests
        for host in hosts:
            host.assert_empty()
    finally:
        for application in applications:
            application.ended.set()
        for application in applications:
            application.join(30)
        for host in hosts:
            host.close()
            assert "there is a mistake" not in host.relay.told()


def is_idle(host: Host) -> bool:
    """Return whether nothing is under way at *host*."""
    return not host.redis.exists(queues.BACKLOG, queues.TWINS, queues.REPLY, queues.REMOTE)


def check(host: Host, ret: str, twin: int, data: bytes) -> None:
    """Fetch the answer in *ret*; it is the right one."""
    answer = host.receive(ret, 60)
    assert answer["src"] == twin
    assert answer["err"] == ""
    assert data_of(answer) == data


def test_a_storm_of_kills(folder: Path) -> None:
    require_redis()
    storm(folder, REQUESTS, min(60, REQUESTS // 25), seed=1)
