"""A user who floods a service delays the request of another by few of its own, whatever the service is."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sbus import AsyncBus, Bus, Request
from sbus.protocol.envelope import service_key
from tests.integration.test_trigger import RULE, publish
from tests.support.c_programs import Actor, client_program
from tests.support.daemons import Daemon
from tests.support.store_programs import StoreCaller
from tests.support.trigger_programs import TriggerProgram
from tests.support.users import FIRST, SECOND

FLOOD = 20_000
MOST_BEFORE = 2_000
"""Requests of the flood that may be handled before that of another user: those in the socket and those that the service has read."""

WAIT_SECONDS = 60.0

pytestmark = pytest.mark.usefixtures("needs_root")


class Held:
    """A service whose first request waits, so that a flood and the request of another user arrive meanwhile."""

    def __init__(self) -> None:
        self.bus: Bus | AsyncBus | None = None
        self.is_ready, self.is_held, self.goes_on = threading.Event(), threading.Event(), threading.Event()

    def add_to(self, bus: Bus | AsyncBus) -> None:
        """Serve the commands on *bus*."""
        self.bus = bus
        for command in (self.hold, self.count, self.stop):
            bus.service(command.__name__)(command)

    def hold(self, _request: Request) -> bytes:
        """Block the service."""
        self.is_held.set()
        assert self.goes_on.wait(WAIT_SECONDS)
        return b""

    def count(self, _request: Request) -> bytes:
        """Return the number of malformed requests so far."""
        assert self.bus is not None
        return b"%d" % self.bus.statistics.requests.get("malformed", 0)

    def stop(self, _request: Request) -> bytes:
        """End the service, after all that has arrived."""
        assert self.bus is not None
        self.bus.stop_serving()
        return b""


def serve(path: str, held: Held) -> None:
    """Serve on a ``Bus``."""
    with Bus.connect(path) as bus:
        held.add_to(bus)
        bus.serve(ready=held.is_ready.set)


def serve_concurrently(path: str, held: Held) -> None:
    """Serve on an ``AsyncBus``, whose loop the handlers block."""

    async def run() -> None:
        async with AsyncBus.connect(path) as bus:
            held.add_to(bus)
            await bus.serve(ready=held.is_ready.set)

    asyncio.run(run())


def flood(bus: Daemon, key: bytes) -> None:
    """Publish malformed requests as a second user; the bus has routed them when this returns."""
    publish(bus, SECOND, *((key.decode(), b"x") for _ in range(FLOOD)))


@pytest.mark.parametrize("target", [serve, serve_concurrently])
def test_a_flood_of_malformed_requests_delays_a_request_by_few(bus: Daemon, target: Callable[[str, Held], None]) -> None:
    held = Held()
    service = threading.Thread(target=target, args=(bus.path, held))
    service.start()
    try:
        assert held.is_ready.wait(WAIT_SECONDS)
        with StoreCaller(bus.path, FIRST) as caller, Bus.connect(bus.path) as holder:
            holding = threading.Thread(target=lambda: holder.call("hold", timeout=WAIT_SECONDS))
            holding.start()
            assert held.is_held.wait(WAIT_SECONDS)
            flood(bus, service_key("count"))
            before: list[int] = []
            calling = threading.Thread(target=lambda: before.append(int(caller.bus.call("count", timeout=WAIT_SECONDS))))
            with Bus.connect(bus.path) as observer, observer.subscribe(service_key("count")) as seen:
                calling.start()
                seen.receive(WAIT_SECONDS)  # the request is on its way
            held.goes_on.set()
            calling.join()
            holding.join()
            assert before[0] <= MOST_BEFORE
    finally:
        held.goes_on.set()
        with Bus.connect(bus.path) as stopping:
            stopping.call("stop", timeout=WAIT_SECONDS)
        service.join(WAIT_SECONDS)
    assert held.bus is not None
    assert held.bus.statistics.requests["malformed"] == FLOOD, "a service that ends has handled what had arrived"


@pytest.fixture(scope="module")
def actor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program."""
    return client_program("actor", tmp_path_factory.mktemp("c"))


@pytest.mark.parametrize("order", ["", "order/queue"])
def test_a_service_in_c_lets_users_take_turns_unless_it_has_chosen_an_order(bus: Daemon, actor: Path, order: str) -> None:
    service = Actor(actor, bus.path)
    if order:
        service.ok("set", order)
    service.ok("serve-one", "count")
    service.barrier()  # it learns its address, and then subscribes
    service.barrier()
    flood(bus, service_key("count"))
    publish(bus, FIRST, (service_key("count").decode(), b"first"))
    before = 0
    while service.next().payload != b"first":
        before += 1
    assert before == FLOOD if order else before <= MOST_BEFORE
    service.ok("stop-serving", "count")
    rest = service.barrier()
    assert before + len(rest) == FLOOD, "the answer to a ping follows all requests that had arrived"
    service.close()


def test_a_flood_of_the_keys_of_a_rule_loses_no_message_of_another_user(bus: Daemon, tmp_path: Path) -> None:
    with TriggerProgram(tmp_path, bus.path, RULE) as trigger:
        assert trigger.process is not None
        trigger.process.send_signal(signal.SIGSTOP)
        flood(bus, b"job/1")
        publish(bus, FIRST, ("job/1", b"kept"))
        trigger.process.send_signal(signal.SIGCONT)
        trigger.wait_for_counts(accepted=1, wrong_sender=FLOOD, lost=0, succeeded=1)
