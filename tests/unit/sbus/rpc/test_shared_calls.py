"""Services of one user that share the calls of a command, on a small bus."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from sbus import Bus, PeerDisconnected, Request
from tests.support.minibus import MiniBus
from tests.support.service_threads import ServiceThreads


def echo(request: Request) -> bytes:
    return request.data


def test_one_of_several_services_runs_a_call(mini_bus: MiniBus, services: ServiceThreads) -> None:
    run: list[int] = []

    def counting(number: int) -> Callable[[Request], None]:
        return lambda _request: run.append(number)

    several = [services.add(count=counting(number)) for number in range(3)]
    with Bus.connect(mini_bus.address) as caller:
        callees = [caller.call("count").callee for _ in range(6)]
    assert [each.connection for each in callees if each is not None] == [each.connection for each in several] * 2
    assert run == [0, 1, 2] * 2


def test_the_service_that_got_the_call_disconnects_although_others_serve(mini_bus: MiniBus, services: ServiceThreads) -> None:
    def slow(_request: Request) -> None:
        mini_bus.hang_up(first.connection)

    first = services.add(slow=slow)
    services.add(slow=lambda _request: "from the other one")
    with Bus.connect(mini_bus.address) as caller:
        with pytest.raises(PeerDisconnected) as caught:
            caller.call("slow", timeout=None)
        assert caller.call("slow") == b"from the other one"
    assert [peer.connection for peer in caught.value.callees] == [first.connection]


def test_a_new_service_of_a_command_called_before_is_identified(mini_bus: MiniBus, services: ServiceThreads) -> None:
    with Bus.connect(mini_bus.address) as bus:
        first = services.add(echo=echo)
        bus.call("echo")
        second = services.add(echo=echo)
        callees = [bus.call("echo").callee for _ in range(4)]
    assert {each.connection for each in callees if each} == {first.connection, second.connection}
    assert {each.uid for each in callees if each} == {os.getuid()}
