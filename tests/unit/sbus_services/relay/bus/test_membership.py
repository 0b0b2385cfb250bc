"""A relay on its bus: its counters."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from sbus_programs.config.relay import RelaySettings
from sbus_programs.config.users import ChargedUsers
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.relay.bus.membership import BusMembership
from sbus_services.relay.queue_handler import QueueHandler
from sbus_services.relay.redis.client import RedisUnavailableError
from sbus_services.relay.redis.store import MessageStore


class FakeStore:
    """A store; while the first counter is saved, another one appears."""

    relay = "ab"

    def __init__(self) -> None:
        self.join: BusMembership | None = None
        self.counted: list[tuple[str, int]] = []

    async def count(self, name: str, number: int) -> None:
        assert self.join is not None
        self.counted.append((name, number))
        if name == "bus-never-seen":
            raise RedisUnavailableError("the end of the test")
        self.join.calls.counts["never_seen"] += 2


def test_a_counter_that_appears_while_saving_is_saved_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbus_services.relay.bus.membership.COUNT_SECONDS", 0.0)
    store = FakeStore()
    handler = SimpleNamespace(services=None)
    settings = RelaySettings(bus="/nowhere")
    journal = LimitedLog("sbus-relay")
    store.join = join = BusMembership(
        1001, settings, store=cast(MessageStore, store), handler=cast(QueueHandler, handler), journal=journal, charged=ChargedUsers().of
    )
    join.calls.counts["too_many"] += 3

    async def count() -> None:
        async with asyncio.timeout(300):
            await join.count()

    with pytest.raises(RedisUnavailableError):
        asyncio.run(count())
    assert store.counted == [("bus-too-many", 3), ("bus-never-seen", 2)]
