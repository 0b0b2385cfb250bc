"""How subscriptions and services end: drained, so that nothing is lost that has arrived, and in the right thread and loop."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from sbus import AsyncBus, Bus, Closed, Disconnected, Message, NoRecipient, RemoteError, TimedOut
from sbus.rpc.requests import Request
from tests.support.daemons import Daemon, StartDaemon
from tools.stage import ROOT

SECONDS = 60.0


@pytest.fixture
def path(shared_bus: Daemon) -> str:
    return shared_bus.path


def test_a_drained_subscription_ends_with_the_last_message(path: str) -> None:
    with Bus.connect(path) as bus, Bus.connect(path) as publisher:
        numbers, other = bus.subscribe("n/"), bus.subscribe("n/")
        for number in range(1_000):
            publisher.publish("n/x", str(number))
        publisher.ping()
        numbers.drain()
        numbers.drain()
        bus.ping()  # the bus has handled the UNSUB
        publisher.publish("n/x", "late")
        assert [message.payload for message in numbers] == [b"%d" % number for number in range(1_000)]
        assert numbers.patterns == ()
        with pytest.raises(Closed):
            numbers.receive()
        numbers.close()
        # The other subscription has the same pattern, and keeps it.
        publisher.publish("n/x", "end")
        received = [other.receive(SECONDS) for _ in range(1_002)]
        assert received[-1] == Message(b"n/x", b"end")


def test_a_drained_subscription_can_be_closed_at_once(path: str) -> None:
    """Also when it was full, which stops the reading: the other subscription goes on."""
    with Bus.connect(path, queue_packets=4, batching=False) as bus, bus.subscribe("b") as other:
        full = bus.subscribe("a")
        for _ in range(8):
            bus.publish("a")
        bus.publish("b")
        with pytest.raises(Exception, match="is full"):
            other.receive(SECONDS)
        full.drain()
        full.close()
        assert other.receive(SECONDS) == Message(b"b", b"")
        assert bus.publish("a", receipt=True) == 0


def test_asyncio_drains_too(path: str) -> None:
    async def main() -> None:
        async with AsyncBus.connect(path) as bus:
            numbers = await bus.subscribe("n")
            for number in range(300):
                await bus.publish("n", str(number))
            await bus.ping()
            assert numbers.pending == 300
            await numbers.drain()
            assert [int(message.payload) async for message in numbers] == list(range(300))
            assert numbers.pending == numbers.dropped == 0

    asyncio.run(asyncio.wait_for(main(), SECONDS))


def test_a_drained_subscription_ends_with_its_connection(daemon: StartDaemon) -> None:
    server = daemon("-g", "-o")
    bus = Bus.connect(server.path)
    subscription = bus.subscribe("a")
    bus.publish("a", "x")
    bus.ping()
    server.stop()
    subscription.drain()
    assert [message.payload for message in subscription] == [b"x"]
    assert bus.state == "closed"
    with pytest.raises(Disconnected):
        bus.ping()
    bus.close()


def test_a_handler_stops_its_service_and_answers(path: str) -> None:
    """The requests that have arrived are run and answered, and later ones find no service."""
    with Bus.connect(path) as bus:
        done: list[bytes] = []

        @bus.service("work")
        def work(request: Request) -> str:
            if request.data == b"stop":
                bus.stop_serving()
            done.append(request.data)
            return f"done {request.data.decode()}"

        ready = threading.Event()
        server = threading.Thread(target=bus.serve, kwargs={"ready": ready.set})
        server.start()
        assert ready.wait(SECONDS)
        with Bus.connect(path) as caller:
            assert caller.call("work", "first", timeout=SECONDS) == b"done first"
            assert caller.call("work", "stop", timeout=SECONDS) == b"done stop"
            server.join(SECONDS)
            assert not server.is_alive()
            with pytest.raises(NoRecipient):
                caller.call("work", "late", timeout=SECONDS)
        assert done == [b"first", b"stop"]
        bus.stop_serving()  # harmless
        assert bus.ping() > 0


@pytest.mark.parametrize("face", ["sync", "asyncio"])
def test_queued_requests_are_answered_when_a_service_stops(path: str, face: str) -> None:
    count, entered, proceed = 20, threading.Event(), threading.Event()

    def slow(request: Request) -> bytes:
        entered.set()
        assert proceed.wait(SECONDS)
        return bytes(request.data)

    async def slow_too(request: Request) -> bytes:
        await asyncio.to_thread(slow, request)
        return bytes(request.data)

    stop: list[object] = []

    def serve_blocking() -> None:
        with Bus.connect(path) as bus:
            bus.service("slow")(slow)
            stop.append(bus.stop_serving)
            bus.serve(ready=ready.set)

    async def serve_asyncio() -> None:
        async with AsyncBus.connect(path) as bus:
            bus.service("slow")(slow_too)
            loop = asyncio.get_running_loop()
            stop.append(lambda: loop.call_soon_threadsafe(bus.stop_serving))
            await bus.serve(ready=ready.set)

    ready = threading.Event()
    server = threading.Thread(target=serve_blocking if face == "sync" else lambda: asyncio.run(serve_asyncio()))
    server.start()
    assert ready.wait(SECONDS)

    async def main() -> list[Any]:
        async with AsyncBus.connect(path) as bus:
            calls = [asyncio.ensure_future(bus.call("slow", str(number), timeout=SECONDS)) for number in range(count)]
            await asyncio.to_thread(entered.wait, SECONDS)
            await asyncio.sleep(0.2)
            (end,) = stop
            assert callable(end)
            end()
            proceed.set()
            return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(asyncio.wait_for(main(), SECONDS))
    server.join(SECONDS)
    assert not server.is_alive()
    assert answers[0] == b"0"
    # A caller may have been so slow that its request came too late; every other request is answered.
    assert [answer for number, answer in enumerate(answers) if answer != b"%d" % number and not isinstance(answer, NoRecipient)] == []


def test_a_signal_handler_stops_a_service(path: str) -> None:
    with Bus.connect(path) as bus:
        bus.service("echo")(lambda request: request.data)
        before = signal.signal(signal.SIGALRM, lambda number, frame: bus.stop_serving())
        try:
            bus.serve(ready=lambda: print(signal.alarm(1)))
        finally:
            signal.signal(signal.SIGALRM, before)
        assert bus.state == "connected"


def test_the_state_of_a_connection(daemon: StartDaemon) -> None:
    server = daemon("-g", "-o")
    bus = Bus.connect(server.path, reconnect=True)
    states: list[str] = [bus.state]
    server.stop()
    bus._link.timeout = 0.2  # not for connect(), which can take longer
    with pytest.raises((TimedOut, Disconnected)):
        bus.ping()
    states.append(bus.state)
    bus.close()
    assert [*states, bus.state] == ["connected", "reconnecting", "closed"]

    async def main() -> None:
        assert AsyncBus.connect(server.path).state == "closed"

    asyncio.run(main())


def test_another_event_loop_gets_an_error(path: str) -> None:
    """Also in another thread, where a publication would otherwise change the state at the same time as the loop."""
    made: list[AsyncBus] = []
    proceed, end = threading.Event(), threading.Event()

    async def own() -> None:
        async with AsyncBus.connect(path) as bus:
            made.append(bus)
            proceed.set()
            await asyncio.to_thread(end.wait, SECONDS)
            assert await bus.ping() > 0

    async def other() -> None:
        bus = made[0]
        for use in (lambda: bus.publish("a"), bus.ping, bus.whoami, lambda: bus.call("x"), bus.subscribe("a").__aenter__):
            with pytest.raises(RuntimeError, match="belongs to another event loop"):
                await use()

    thread = threading.Thread(target=lambda: asyncio.run(asyncio.wait_for(own(), SECONDS)))
    thread.start()
    assert proceed.wait(SECONDS)
    try:
        asyncio.run(other())
    finally:
        end.set()
        thread.join(SECONDS)


def test_an_error_of_a_stopped_handler_is_answered_too(path: str) -> None:
    with Bus.connect(path) as bus:

        @bus.service("fail")
        def fail(request: Request) -> None:
            bus.stop_serving()
            raise ValueError

        ready = threading.Event()
        server = threading.Thread(target=bus.serve, kwargs={"ready": ready.set})
        server.start()
        assert ready.wait(SECONDS)
        with Bus.connect(path) as caller, pytest.raises(RemoteError, match="ValueError"):
            caller.call("fail", timeout=SECONDS)
        server.join(SECONDS)
        assert not server.is_alive()


_ENDS_WITHOUT_CLOSING = """
import sys
from sbus import Bus

bus = Bus.connect(sys.argv[1], gather=True)
bus._link.clock = lambda: 0.0  # so nothing else sends them
for number in range(100):
    bus.publish("n", str(number))
assert bus._session.outgoing
"""


def test_a_program_that_ends_sends_what_it_has_gathered(path: str) -> None:
    with Bus.connect(path) as bus, bus.subscribe("n") as numbers:
        subprocess.run([sys.executable, "-c", _ENDS_WITHOUT_CLOSING, path], cwd=ROOT, check=True, timeout=SECONDS)
        received = [numbers.receive(SECONDS) for _ in range(100)]
    assert received == [Message(b"n", b"%d" % number) for number in range(100)]
