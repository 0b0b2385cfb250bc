"""Relays and Redis are killed before and after each step of a request; each has one response, and is delivered once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from sbus_services.relay.sender import Sender
from sbus_services.relay.service import Relay
from tests.support.bus_hosts import FIRST, SECOND
from tests.support.relay_steps import RelayPair, Step
from tests.support.relays import RedisServer

DOWN_SECONDS = 0.1
"""How long a killed Redis stays down, so that others notice."""

STEPS = [
    *((FIRST, name) for name in ("BLMOVE", "take", "INCR", "dispatch", "claim", "sent", "HGET", "admit", "answer")),
    *((SECOND, name) for name in ("accept", "BLMOVE", "deliver", "respond", "claim", "sent")),
]

at_each_step = pytest.mark.parametrize(("twin", "name"), STEPS)
before_and_after = pytest.mark.parametrize("after", [False, True], ids=["before", "after"])


@pytest.fixture(autouse=True)
def _without_room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable immediate sending for the step in which waiting messages are claimed."""
    if request.node.callspec.params["name"] == "claim":
        monkeypatch.setattr(Sender, "hold_seconds", lambda _sender, _twin: 0.0)


@before_and_after
@at_each_step
def test_relay_killed_at_a_step_loses_and_duplicates_nothing(
    folder: Path, servers: dict[int, RedisServer], twin: int, name: str, after: bool
) -> None:
    async def run() -> None:
        relays = RelayPair(folder, servers)
        step = Step(name, after=after)
        for each in (FIRST, SECOND):
            await relays.start(each, step if each == twin else None)
        application = asyncio.create_task(relays.serve())
        rets = await relays.send_until(step)
        await relays.stop(twin)
        await relays.start(twin)
        await relays.check(rets)
        application.cancel()

    asyncio.run(run())


@before_and_after
@at_each_step
def test_redis_killed_at_a_step_loses_and_duplicates_nothing(
    folder: Path, servers: dict[int, RedisServer], capfd: pytest.CaptureFixture[str], *, twin: int, name: str, after: bool
) -> None:
    """After the step its result is lost, so it is unknown whether it happened."""

    async def end_of_redis(_relay: Relay, ask: Callable[[], Awaitable[Any]]) -> Any:
        servers[twin].kill()
        asyncio.get_running_loop().call_later(DOWN_SECONDS, servers[twin].start)
        if after:
            raise redis.ConnectionError("it was killed")
        return await ask()

    async def run() -> None:
        relays = RelayPair(folder, servers)
        step = Step(name, end_of_redis, after=after)
        for each in (FIRST, SECOND):
            await relays.start(each, step if each == twin else None)
        application = asyncio.create_task(relays.serve())
        rets = await relays.send_until(step)
        await relays.check(rets)
        application.cancel()

    asyncio.run(run())
    reported = capfd.readouterr().err
    assert "retrying, no message is lost" in reported
    assert "internal error" not in reported
