"""Starts of services with a fake bus and service manager: who shares a start, and whose limits hold."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter

import pytest

from sbus import Request, ServiceError
from sbus.protocol.credentials import Peer, make_peer
from sbus.protocol.errors import SbusError
from sbus_programs.config.trigger import EVERY_USER, Rate, TriggerRule
from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbus_services.trigger import service_starts
from sbus_services.trigger.jobs import Done
from sbus_services.trigger.rule_state import RuleState, Sender
from sbus_services.trigger.service_starts import MAX_CALLS_OF_USER, ServiceStarts

RULE = TriggerRule(keys=("rpc/echo",), senders=(1, 2), start="echo.service", when="no-service", service_timeout=0.1, burst=Rate(1, 3_600.0))


class FakeBus:
    def __init__(self) -> None:
        self.served = False
        self.error: SbusError | None = None

    async def is_served(self, command: str) -> bool:
        assert command == "echo"
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.served


class FakeManager:
    def __init__(self, bus: FakeBus) -> None:
        self._bus = bus
        self.error = ""
        self.found = ("active", "success")
        self.started: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.brings_service = True

    async def run(self, action: str, unit: str, *, waits: bool = True) -> str:
        assert (action, waits) == ("start", True)
        self.started.append(unit)
        await self.may_end.wait()
        self._bus.served = self.brings_service and not self.error
        return self.error

    async def state(self, unit: str) -> tuple[str, str]:
        return self.found


class Fixture:
    def __init__(self, rule: TriggerRule = RULE, charged: ChargedUsers | None = None) -> None:
        self.bus = FakeBus()
        self.manager = FakeManager(self.bus)
        self.done: list[Done] = []
        self.outcomes: list[str] = []
        self.state = RuleState(rule, charged or ChargedUsers())
        self.starts = ServiceStarts(self.state, self.manager, self.done.append, lambda _state, outcome: self.outcomes.append(outcome))

    def call(self, peer: Peer) -> asyncio.Task[None]:
        request = Request("trigger/start/echo", b"", peer, "uid", None)
        return asyncio.ensure_future(self.starts.start(self.bus, "echo", request))

    async def error(self, uid: int) -> str:
        """Return the error of a call of a user, or no words."""
        try:
            await self.call(user(uid))
        except ServiceError as error:
            return str(error)
        return ""


def user(uid: int) -> Peer:
    return make_peer(uid, b"!/cred/%d/%d/77" % (uid, uid))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_start_and_its_event() -> None:
    async def main() -> None:
        fixture = Fixture()
        assert await fixture.error(1) == ""
        (done,) = fixture.done
        assert (done.firing.unit, done.firing.key, done.firing.payload, done.error) == ("echo.service", b"rpc/echo", b"", "")
        assert done.firing.sender is not None
        assert done.firing.sender.uid == 1
        assert await fixture.error(2) == ""
        assert fixture.state.counts == Counter(messages=2, accepted=1, actions=1, succeeded=1, served=1)
        assert len(fixture.starts) == 0

    asyncio.run(main())


def test_callers_share_a_start_and_one_that_gives_up_does_not_end_it() -> None:
    async def main() -> None:
        fixture = Fixture()
        fixture.manager.may_end.clear()
        first, second = fixture.call(user(1)), fixture.call(user(2))
        await settle()
        first.cancel()
        await settle()
        assert len(fixture.starts) == 1
        fixture.manager.may_end.set()
        await second
        assert first.cancelled()
        assert fixture.manager.started == ["echo.service"]
        assert fixture.state.counts["coalesced"] == 1

    asyncio.run(main())


def test_the_limits_of_one_user_are_not_those_of_another_that_waits_with_it() -> None:
    async def main() -> None:
        fixture = Fixture()
        fixture.manager.error = "no such unit"
        assert await fixture.error(1) == "cannot start echo.service: no such unit"
        fixture.manager.error = ""
        limited, other = fixture.call(user(1)), fixture.call(user(2))
        with pytest.raises(ServiceError, match="user 1 has sent more than 1"):
            await limited
        await other
        assert fixture.state.counts["over_burst"] == 1
        assert fixture.manager.started == ["echo.service"] * 2

    asyncio.run(main())


def test_who_is_not_in_from_and_who_is_of_another_host_starts_nothing() -> None:
    async def main() -> None:
        fixture = Fixture()
        assert await fixture.error(3) == "user 3 may not start echo.service"
        remote = Peer(9, -1, -1, -1, b"!/cred/1/1/77/!/host/alpha/!/cred/1/1/5", b"!/host/alpha/!/cred/1/1/5")
        with pytest.raises(ServiceError, match="may not start"):
            await fixture.call(remote)
        assert fixture.manager.started == []
        assert fixture.outcomes == ["wrong_sender"] * 2

    asyncio.run(main())


def test_too_many_calls_of_one_user_leave_room_for_another() -> None:
    async def main() -> None:
        fixture = Fixture()
        fixture.manager.may_end.clear()
        waiting = [fixture.call(user(1)) for _ in range(MAX_CALLS_OF_USER)]
        await settle()
        assert await fixture.error(1) == f"busy: {MAX_CALLS_OF_USER} calls of user 1 wait for services"
        waiting.append(fixture.call(user(2)))
        await settle()
        fixture.manager.may_end.set()
        await asyncio.gather(*waiting)
        assert await fixture.error(1) == "", "the calls that have ended do not count"
        assert fixture.state.counts["overflow"] == 1

    asyncio.run(main())


def test_all_ids_of_a_user_have_the_limits_of_one() -> None:
    async def main() -> None:
        charged = ChargedUsers(SubordinateIds([SubordinateRange(100, 10, 1)]))
        fixture = Fixture(dataclasses.replace(RULE, senders=(EVERY_USER,)), charged)
        fixture.manager.may_end.clear()
        waiting = [fixture.call(user(100 + number % 10)) for number in range(MAX_CALLS_OF_USER)]
        await settle()
        assert await fixture.error(1) == f"busy: {MAX_CALLS_OF_USER} calls of user 1 wait for services"
        fixture.manager.may_end.set()
        await asyncio.gather(*waiting)
        assert [done.firing.sender for done in fixture.done] == [Sender(100, 100, 77, 1)]
        fixture.bus.served = False
        assert "user 1 has sent more than 1" in await fixture.error(109), "one burst, and one action that all share"

    asyncio.run(main())


def test_too_many_calls_of_all_users_leave_one_to_each(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(service_starts, "MAX_CALLS", 3)
        fixture = Fixture()
        fixture.manager.may_end.clear()
        waiting = [fixture.call(user(1)) for _ in range(3)]
        await settle()
        assert await fixture.error(1) == "busy: 3 calls of all users wait for services"
        waiting.append(fixture.call(user(2)))
        await settle()
        assert await fixture.error(2) == "busy: 3 calls of all users wait for services"
        fixture.manager.may_end.set()
        await asyncio.gather(*waiting)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (("failed", "exit-code"), "echo.service has ended without a service of 'echo': its result is exit-code"),
        (("active", "success"), "echo.service is active, but has no service of 'echo' after 0.1 s"),
        (("unknown", "unknown"), "echo.service is unknown, but has no service of 'echo' after 0.1 s"),
    ],
)
def test_a_unit_without_a_service(found: tuple[str, str], words: str) -> None:
    async def main() -> None:
        fixture = Fixture()
        fixture.manager.brings_service = False
        fixture.manager.found = found
        assert await fixture.error(1) == words
        assert [done.error for done in fixture.done] == [words]

    asyncio.run(main())


def test_the_loss_of_the_bus_and_the_end_of_the_trigger() -> None:
    async def main() -> None:
        fixture = Fixture()
        fixture.bus.error = SbusError("gone")
        assert await fixture.error(1) == "sbus-trigger has no connection to the bus: gone"
        fixture.bus.error = None
        fixture.manager.may_end.clear()
        waiting = fixture.call(user(1))
        await settle()
        await fixture.starts.drain()
        assert fixture.state.counts["unknown"] == 1
        await asyncio.gather(waiting, return_exceptions=True)
        assert len(fixture.starts) == 0

    asyncio.run(main())
