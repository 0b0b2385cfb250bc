"""What is asked of a bus: a bounded number of requests, for the users with the lowest numbers."""

from __future__ import annotations

import asyncio
import json

import pytest

from sbus.bus_documents import BadResponseError
from sbus.protocol import controls
from sbus_services.metrics.snapshot import NotPermittedError, ask, ask_async
from tests.unit.sbus_services.metrics.snapshots import Answers, totals


def usage(uid: int) -> dict[str, object]:
    """Return the usage of a user."""
    return {"uid": uid, "connections": 1}


def some(*uids: int, present: int = 100) -> Answers:
    """Return a bus with users, of which the first are connected."""
    return Answers({uid: (usage(uid) if place < present else None, totals(uid, uid)) for place, uid in enumerate(uids)})


def test_all_users() -> None:
    bus = some(0, 5, 6, 7, 8, present=3)
    found = ask(bus, 100)
    assert found.chosen == set(found.totals) == {0, 5, 6, 7, 8}
    assert set(found.users) == {0, 5, 6}
    assert found.other["received_packets"] == 1_000
    assert asyncio.run(ask_async(Asynchronous(bus), 100)) == found


class Asynchronous:
    """The same bus, asynchronous."""

    def __init__(self, bus: Answers) -> None:
        self._bus = bus

    async def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        """Return the answer."""
        return self._bus.control(key, payload)


def test_only_the_pages_with_chosen_users_are_read() -> None:
    bus = some(*range(1_000, 1_100))
    found = ask(bus, 4)
    assert found.chosen == set(found.users) == {1_000, 1_001, 1_002, 1_003}
    assert len(found.totals) == 100
    assert [payload for key, payload in bus.asked if key == controls.USERS] == [None, b"1001"]


def test_no_user_is_chosen() -> None:
    bus = some(1, 2)
    assert ask(bus, 0).chosen == frozenset()
    assert controls.USERS not in [key for key, _ in bus.asked]


def test_a_user_without_the_right() -> None:
    with pytest.raises(NotPermittedError, match="right stats"):
        ask(Answers({}, scope="connection"), 100)


def test_a_bus_of_an_older_version() -> None:
    bus = Answers({})
    bus.features = b"stats\nusers"
    with pytest.raises(BadResponseError, match="restart it after an upgrade"):
        ask(bus, 100)


class Repeating(Answers):
    """A bus whose pages never end."""

    def control(self, key: bytes, payload: bytes | None = None) -> bytes:
        """Return the same page each time."""
        return json.dumps({"users": [], "next": 5}).encode() if key == controls.TOTALS else super().control(key, payload)


def test_pages_that_repeat() -> None:
    with pytest.raises(BadResponseError, match="the pages repeat"):
        ask(Repeating({}), 100)


def test_an_answer_that_is_not_json() -> None:
    class Broken(Answers):
        def control(self, key: bytes, payload: bytes | None = None) -> bytes:
            return b"{" if key == controls.STATS else super().control(key, payload)

    with pytest.raises(BadResponseError, match="not JSON"):
        ask(Broken({}), 100)
