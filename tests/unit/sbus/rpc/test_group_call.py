"""Calls to many: each member on its own, while members come and go."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from sbus import AsyncBus, Bus, CallTimeout, NoRecipient, Outcome, PeerDisconnected, RemoteError, Request
from sbus.rpc.calls import MAX_CONCURRENT_REQUESTS
from tests.support.minibus import WAIT_SECONDS, BusConnection, MiniBus
from tests.support.service_threads import ServiceThreads


@pytest.fixture(params=["blocking", "asyncio"])
def face(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def call_all(face: str, address: str, command: str, timeout: float | None = WAIT_SECONDS) -> list[Outcome]:
    """Return all outcomes, in the order of the members' numbers."""

    async def main() -> list[Outcome]:
        async with AsyncBus.connect(address) as bus:
            return [outcome async for outcome in bus.call_all(command, "x", timeout=timeout)]

    if face == "blocking":
        with Bus.connect(address) as bus:
            outcomes = list(bus.call_all(command, "x", timeout=timeout))
    else:
        outcomes = asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS * 2))
    return sorted(outcomes, key=lambda each: each.member.connection)


def test_each_member_answers_or_fails_on_its_own(face: str, mini_bus: MiniBus, services: ServiceThreads) -> None:
    def fail(request: Request) -> bytes:
        raise ValueError("not today")

    services.add(work=lambda _request: "one")
    services.add(work=fail)
    third = services.add(work=lambda _request: mini_bus.hang_up(third.connection))
    one, two, three = call_all(face, mini_bus.address, "work")
    assert one.result() == b"one"
    assert isinstance(two.error, RemoteError)
    assert isinstance(three.error, PeerDisconnected)


def test_each_member_that_does_not_answer_is_a_timeout(face: str, mini_bus: MiniBus) -> None:
    with contextlib.ExitStack() as silent:
        for _ in range(2):
            bus = silent.enter_context(Bus.connect(mini_bus.address))
            silent.enter_context(bus.subscribe("rpc/work", bus.address + "rpc/work"))
        outcomes = call_all(face, mini_bus.address, "work", 2.0)
    assert [type(each.error) for each in outcomes] == [CallTimeout, CallTimeout]
    with pytest.raises(CallTimeout):
        outcomes[0].result()


def test_an_empty_group_yields_nothing(face: str, mini_bus: MiniBus) -> None:
    assert call_all(face, mini_bus.address, "work") == []


def test_who_only_listens_is_not_called(face: str, mini_bus: MiniBus, services: ServiceThreads) -> None:
    service = services.add(work=lambda _request: "one")
    with Bus.connect(mini_bus.address) as spy, spy.subscribe(""):
        (outcome,) = call_all(face, mini_bus.address, "work")
    assert outcome.member.connection == service.connection


def test_a_member_that_leaves_before_the_call_is_reported_as_absent(face: str, mini_bus: MiniBus, services: ServiceThreads) -> None:
    stays = services.add(work=lambda _request: "here")
    leaves = services.add(work=lambda _request: "here too")

    def before(connection: BusConnection, packet: bytes) -> None:
        if packet.startswith(b"MSG !/conn/%d/rpc/work" % leaves.connection):
            mini_bus.hang_up(leaves.connection)

    mini_bus.before = before
    one, two = call_all(face, mini_bus.address, "work", None)
    assert (one.member.connection, one.answer) == (stays.connection, b"here")
    assert isinstance(two.error, NoRecipient)


def test_who_comes_between_the_list_and_the_call_is_not_called(face: str, mini_bus: MiniBus, services: ServiceThreads) -> None:
    """It has to synchronise to the state anyway: the list could as well have been asked for a moment earlier."""
    first = services.add(work=lambda _request: "first")
    asked = threading.Event()
    come = threading.Event()
    called: list[Request] = []

    def before(connection: BusConnection, packet: bytes) -> bool:
        if packet.startswith(b"MSG !/conn/") and b"/rpc/work" in packet and not come.is_set():
            asked.set()
            connection.say(b"")
        return False

    def join() -> None:
        asked.wait(WAIT_SECONDS)
        services.add(work=called.append)
        come.set()

    joining = threading.Thread(target=join)
    joining.start()
    mini_bus.before = before
    outcomes = call_all(face, mini_bus.address, "work")
    joining.join(WAIT_SECONDS)
    assert [outcome.member.connection for outcome in outcomes] == [first.connection]
    assert called == []


def test_a_large_group_is_called_some_at_a_time(face: str, mini_bus: MiniBus) -> None:
    count = 2 * MAX_CONCURRENT_REQUESTS + 5
    buses = [Bus.connect(mini_bus.address) for _ in range(count)]
    try:
        subscriptions = [bus.subscribe("rpc/work", bus.address + "rpc/work") for bus in buses]
        under_way: list[int] = []

        def before(connection: BusConnection, packet: bytes) -> None:
            if packet.startswith(b"MSG !/conn/") and b"/rpc/work\0" in packet:
                under_way.append(1)
                assert len(under_way) <= MAX_CONCURRENT_REQUESTS
                number = int(packet.split(b"/")[2])
                threading.Thread(target=end, args=(number,)).start()

        def end(number: int) -> None:
            under_way.pop()
            mini_bus.hang_up(number)

        mini_bus.before = before
        outcomes = call_all(face, mini_bus.address, "work")
        assert len(outcomes) == count
        assert {type(outcome.error) for outcome in outcomes} <= {PeerDisconnected, NoRecipient}
        assert len(subscriptions) == count
    finally:
        for bus in buses:
            bus.close()


def test_leaving_in_the_middle_leaves_nothing_behind(mini_bus: MiniBus, services: ServiceThreads) -> None:
    for _ in range(3):
        services.add(work=lambda _request: "x")
    with Bus.connect(mini_bus.address) as bus:
        for outcome in bus.call_all("work"):
            assert outcome.answer == b"x"
            break
        assert bus._caller is not None
        assert not bus._caller.requests._waiting
        assert bus.call("work") == b"x"
