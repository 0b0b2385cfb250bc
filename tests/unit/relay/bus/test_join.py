"""How a relay is joined to a bus: what it counts meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from sbusd.config.relay import RelaySettings
from sbusd.relay.bus.join import Join
from sbusd.relay.log_messages import RelayLog
from sbusd.relay.queue_handler import Desk
from sbusd.relay.redis.link import RedisAwayError
from sbusd.relay.redis.store import Store


class Books:
    """A store; while the first count is written down, a call of another kind is counted."""

    relay = "ab"

    def __init__(self) -> None:
        self.join: Join | None = None
        self.counted: list[tuple[str, int]] = []

    async def count(self, name: str, number: int) -> None:
        assert self.join is not None
        self.counted.append((name, number))
        if name == "bus-never-seen":
            raise RedisAwayError("the end of the test")
        self.join.callers.counts["never_seen"] += 2


def test_what_is_counted_for_the_first_time_meanwhile_is_written_down_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbusd.relay.bus.join.COUNT_SECONDS", 0.0)
    books = Books()
    desk = SimpleNamespace(services=None)
    settings = RelaySettings(bus="/nowhere")
    books.join = join = Join(1001, settings, store=cast(Store, books), desk=cast(Desk, desk), journal=RelayLog())
    join.callers.counts["too_many"] += 3

    async def count() -> None:
        async with asyncio.timeout(30):
            await join.count()

    with pytest.raises(RedisAwayError):
        asyncio.run(count())
    assert books.counted == [("bus-too-many", 3), ("bus-never-seen", 2)]
