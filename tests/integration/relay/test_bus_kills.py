"""A relay that dies at each step of a request that a service of its bus runs: one answer, and never run twice."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import uuid
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from sbusd.client import Request, Twins
from sbusd.relay.log_messages import RelayLog
from sbusd.relay.queue_handler import ABANDONED_WORDS
from sbusd.relay.redis import names
from sbusd.relay.service import Relay
from tests.support.daemons import Daemon
from tests.support.relays import RedisServer, data_of, request
from tests.support.servants import serving
from tests.support.steps import Step, World
from tests.support.towns import FIRST, SECOND


class Joined(World):
    """Two twins, of which the second is joined to a bus."""

    def __init__(self, folder: Path, servers: dict[int, RedisServer], bus: str) -> None:
        super().__init__(folder, servers)
        self.bus = bus
        self.latest: Relay | None = None

    def relay(self, twin: int, ready: asyncio.Event) -> Relay:
        """Return a new relay for *twin*."""
        made = super().relay(twin, ready)
        if twin == SECOND:
            settings = dataclasses.replace(made._settings, bus=self.bus)
            made = self.latest = Relay(twin, settings, RelayLog(), ready=lambda _listen: ready.set())
        return made

    def is_joined(self) -> bool:
        """Return whether it is; a request that comes before goes to Redis."""
        return self.latest is not None and self.latest._join is not None and self.latest._join.bus is not None


def note(file: Path, _request: Request) -> bytes:
    """Answer, and note that it was run."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, b".")
    finally:
        os.close(descriptor)
    return b"once"


class Death(NamedTuple):
    """Where the relay dies, how often the request is then run in all, and whether its caller has the service's answer."""

    step: str
    after: bool
    runs: int
    is_answered: bool


DEATHS = [
    Death("engage", False, 1, True),
    Death("engage", True, 0, False),
    Death("respond", False, 1, False),
    Death("respond", True, 1, True),
]


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: f"{'after' if death.after else 'before'}-{death.step}")
def test_a_relay_that_dies_over_a_request_answers_once(folder: Path, bus: Daemon, servers: dict[int, RedisServer], death: Death) -> None:
    async def run() -> None:
        world = Joined(folder, servers, bus.path)
        step = Step(death.step, after=death.after)
        for each in (FIRST, SECOND):
            await world.start(each, step if each == SECOND else None)
        await world.soon(world.is_joined, "the relay to be joined")
        first, second = world.clients[FIRST], world.clients[SECOND]
        ret = str(uuid.uuid4())
        first.rpush(names.LOCAL, json.dumps(request("x", SECOND, ret=ret, try_=1000)))
        async with asyncio.timeout(30):
            await step.happened.wait()
        await world.stop(SECOND)
        # Where the next relay takes it up before it is joined, Redis has it.
        application = asyncio.create_task(world.serve())
        await world.start(SECOND)
        await world.soon(lambda: first.llen(ret), "the answer")
        under_way = (names.LOCAL, names.REMOTE, names.REPLY, names.BACKLOG, names.TWINS, names.ABANDONED)
        await world.soon(lambda: not any(client.exists(*under_way) for client in (first, second)), "the end of all")
        application.cancel()
        await world.stop(FIRST, SECOND)
        (answer,) = [json.loads(raw) for raw in first.lrange(ret, 0, -1)]
        if death.is_answered:
            assert (data_of(answer), answer["err"]) == (b"once", "")
        else:
            assert (answer["dat"], answer["err"]) == ("", ABANDONED_WORDS.format(twin=SECOND, cmd="x"))
        by_redis = int(second.hget(names.COUNTERS, "requests-delivered") or 0)
        assert (ran.stat().st_size if ran.exists() else 0) + by_redis == death.runs
        assert second.keys("msgbus.system.relay.taken:*") == []

    ran = folder / "ran"
    with serving(bus.path, twins=Twins(), x=partial(note, ran)):
        asyncio.run(run())
