"""A relay that is killed at each step of a request for a service on its bus: one response, and the request never runs twice."""

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

from sbus import Request, Twins
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.relay.bus import incoming_calls
from sbus_services.relay.queue_handler import ABANDONED_WORDS
from sbus_services.relay.redis import names
from sbus_services.relay.service import Relay
from tests.support.bus_hosts import FIRST, SECOND
from tests.support.daemons import Daemon
from tests.support.relay_steps import RelayPair, Step
from tests.support.relays import WAIT_SECONDS, RedisServer, data_of, request
from tests.support.service_processes import running_service


class BusRelayPair(RelayPair):
    """Two relays, of which the second joins a bus."""

    def __init__(self, folder: Path, servers: dict[int, RedisServer], bus: str) -> None:
        super().__init__(folder, servers)
        self.bus = bus
        self.latest: Relay | None = None

    def relay(self, twin: int, ready: asyncio.Event) -> Relay:
        """Return a new relay of host *twin*."""
        made = super().relay(twin, ready)
        if twin == SECOND:
            settings = dataclasses.replace(made._settings, bus=self.bus)
            made = self.latest = Relay(twin, settings, LimitedLog("sbus-relay"), ready=lambda _listen: ready.set())
        return made

    def is_joined(self) -> bool:
        """Return whether the second relay has joined the bus; earlier requests go to Redis."""
        return self.latest is not None and self.latest._membership is not None and self.latest._membership.bus is not None


def note(file: Path, _request: Request) -> bytes:
    """Respond, and record the run in *file*."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, b".")
    finally:
        os.close(descriptor)
    return b"once"


class CrashCase(NamedTuple):
    """The step at which the relay dies, the total number of runs, and whether the caller receives the response of the service."""

    step: str
    after: bool
    runs: int
    is_answered: bool


CRASH_CASES = [
    CrashCase("engage", False, 1, True),
    CrashCase("engage", True, 0, False),
    CrashCase("respond", False, 1, False),
    CrashCase("respond", True, 1, True),
]


@pytest.mark.parametrize("case", CRASH_CASES, ids=lambda case: f"{'after' if case.after else 'before'}-{case.step}")
def test_relay_killed_during_a_request_responds_once(
    folder: Path, bus: Daemon, servers: dict[int, RedisServer], monkeypatch: pytest.MonkeyPatch, case: CrashCase
) -> None:
    # On a slow machine the bus may take longer to answer. The request would then go to Redis and never take the step.
    monkeypatch.setattr(incoming_calls, "ASK_SECONDS", WAIT_SECONDS)

    async def run() -> None:
        relays = BusRelayPair(folder, servers, bus.path)
        step = Step(case.step, after=case.after)
        for each in (FIRST, SECOND):
            await relays.start(each, step if each == SECOND else None)
        await relays.soon(relays.is_joined, "the relay to be joined")
        first, second = relays.clients[FIRST], relays.clients[SECOND]
        ret = str(uuid.uuid4())
        first.rpush(names.LOCAL, json.dumps(request("x", SECOND, ret=ret, try_=1000)))
        async with asyncio.timeout(WAIT_SECONDS):
            await step.happened.wait()
        await relays.stop(SECOND)
        # If the next relay processes the request before it joins the bus, the request goes to Redis.
        application = asyncio.create_task(relays.serve())
        await relays.start(SECOND)
        await relays.soon(lambda: first.llen(ret), "the answer")
        under_way = (names.LOCAL, names.REMOTE, names.REPLY, names.BACKLOG, names.TWINS, names.ABANDONED)
        await relays.soon(lambda: not any(client.exists(*under_way) for client in (first, second)), "the end of all")
        application.cancel()
        await relays.stop(FIRST, SECOND)
        (answer,) = [json.loads(raw) for raw in first.lrange(ret, 0, -1)]
        if case.is_answered:
            assert (data_of(answer), answer["err"]) == (b"once", "")
        else:
            assert (answer["dat"], answer["err"]) == ("", ABANDONED_WORDS.format(twin=SECOND, cmd="x"))
        by_redis = int(second.hget(names.COUNTERS, "requests-delivered") or 0)
        assert (ran.stat().st_size if ran.exists() else 0) + by_redis == case.runs
        assert second.keys("msgbus.system.relay.taken:*") == []

    ran = folder / "ran"
    with running_service(bus.path, twins=Twins(), x=partial(note, ran)):
        asyncio.run(run())
