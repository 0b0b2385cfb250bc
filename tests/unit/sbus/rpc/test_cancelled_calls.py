"""Cancelled calls on a small bus, from the caller to the handler, with both faces on both sides."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from sbus import AsyncBus, Bus, CallTimeout, RemoteError, Request
from sbus.statistics import Statistics
from tests.support.minibus import WAIT_SECONDS, BusConnection, MiniBus
from tests.support.service_threads import ServiceThreads


def run(mini_bus: MiniBus, main: Callable[[AsyncBus, AsyncBus], Awaitable[None]]) -> Statistics:
    """Run *main* with the bus of a service, which serves ``slow``, and that of a caller; return the statistics of the service."""

    async def both() -> Statistics:
        async with AsyncBus.connect(mini_bus.address) as service, AsyncBus.connect(mini_bus.address) as caller:
            await main(service, caller)
            return service.statistics

    return asyncio.run(asyncio.wait_for(both(), WAIT_SECONDS * 2))


class Slow:
    """A handler that runs until it is cancelled, and notes that."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.requests: list[Request] = []

    async def __call__(self, request: Request) -> bytes:
        self.requests.append(request)
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        return b""


async def serving(service: AsyncBus) -> tuple[Slow, asyncio.Task[None]]:
    """Serve ``slow`` and ``echo``."""
    slow, ready = Slow(), asyncio.Event()
    service.service("slow")(slow)
    service.service("echo")(lambda request: request.data)
    task = asyncio.ensure_future(service.serve(ready=ready.set))
    await ready.wait()
    return slow, task


async def call_until(caller: AsyncBus, slow: Slow) -> None:
    """Call with a timeout that is long enough for the handler to begin. Raises CallTimeout of that call."""
    timeout = 0.1
    while True:
        try:
            await caller.call("slow", timeout=timeout)
        except CallTimeout:
            if slow.begun.is_set():
                raise
            timeout *= 2


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("how", ["task", "timeout", "disconnect", "iteration"])
def test_the_task_of_a_handler_is_cancelled(mini_bus: MiniBus, how: str) -> None:
    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        slow, task = await serving(service)
        group = caller.call_all("slow", timeout=None)
        begin: dict[str, Callable[[], Awaitable[object]]] = {"timeout": lambda: call_until(caller, slow), "iteration": lambda: anext(group)}
        call = asyncio.ensure_future(begin.get(how, lambda: caller.call("slow", timeout=None))())
        await slow.begun.wait()
        if how == "disconnect":
            await caller.close()
        elif how != "timeout":
            call.cancel()
        await slow.ended.wait()
        assert slow.requests[0].cancelled
        (outcome,) = await asyncio.gather(call, return_exceptions=True)
        assert isinstance(outcome, BaseException)
        if how != "disconnect":
            assert await caller.call("echo", "on") == b"on"
            assert caller.statistics.stray_answers == 0
        await stop(task)

    statistics = run(mini_bus, main)
    assert statistics.requests["cancelled"] >= 1
    assert "failed" not in statistics.requests


def test_cancelled_handlers_make_room_for_others(mini_bus: MiniBus) -> None:
    """All places are taken by handlers that never end, and more requests wait."""

    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        slow, task = await serving(service)
        calls = [asyncio.ensure_future(caller.call("slow", timeout=None)) for _ in range(100)]
        while len(slow.requests) < 64:
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert await caller.call("echo", "on", timeout=None) == b"on"
        assert all(request.cancelled for request in slow.requests)
        await stop(task)

    statistics = run(mini_bus, main)
    assert statistics.requests["answered"] == 1
    assert statistics.requests["cancelled"] == statistics.requests["requests"] - 1


def test_a_handler_that_goes_on_gets_no_response(mini_bus: MiniBus) -> None:
    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        begun, done = asyncio.Event(), asyncio.Event()

        @service.service("stubborn")
        async def stubborn(request: Request) -> bytes:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                done.set()
            return b"late"

        _, task = await serving(service)
        call = asyncio.ensure_future(caller.call("stubborn", timeout=None))
        await begun.wait()
        call.cancel()
        await done.wait()
        assert await caller.call("echo", "on") == b"on"
        await caller.ping()
        assert caller.statistics.stray_answers == 0
        await stop(task)

    assert run(mini_bus, main).requests == {"requests": 2, "cancelled": 1, "answered": 1}


def test_a_thread_of_a_handler_waits_for_it(mini_bus: MiniBus) -> None:
    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        begun, seen = asyncio.Event(), list[bool]()

        @service.service("thread")
        async def thread(request: Request) -> bytes:
            begun.set()
            seen.append(await asyncio.shield(asyncio.to_thread(request.cancelled.wait, WAIT_SECONDS)))
            return b""

        _, task = await serving(service)
        call = asyncio.ensure_future(caller.call("thread", timeout=None))
        await begun.wait()
        call.cancel()
        assert await caller.call("echo", "on") == b"on"
        await stop(task)

    assert run(mini_bus, main).requests["cancelled"] == 1


def test_the_end_of_the_service_is_not_a_cancellation(mini_bus: MiniBus) -> None:
    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        slow, task = await serving(service)
        call = asyncio.ensure_future(caller.call("slow", timeout=None))
        await slow.begun.wait()
        await stop(task)
        with pytest.raises(RemoteError, match="the service stopped while it ran the request"):
            await call
        assert not slow.requests[0].cancelled

    assert "cancelled" not in run(mini_bus, main).requests


def test_a_short_call_costs_no_subscription(mini_bus: MiniBus) -> None:
    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        _, task = await serving(service)
        for number in range(100):
            await caller.call("echo", f"{number}")
        await service.ping()
        assert not any(packet.startswith(b"SUB !/event/") for packet in mini_bus.connections[1].received)
        await stop(task)

    run(mini_bus, main)


# A blocking service


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("how", ["timeout", "disconnect"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_blocking_handler_waits_for_it_or_tests_it(mini_bus: MiniBus, background: bool, how: str, waits: bool) -> None:
    begun, seen = threading.Event(), list[bool]()

    def slow(request: Request) -> bytes:
        begun.set()
        while not waits and not request.cancelled:
            pass
        seen.append(request.cancelled.wait(WAIT_SECONDS))
        return b"late"

    with Bus.connect(mini_bus.address, background=background) as service:
        service.service("slow")(slow)
        service.service("echo")(lambda request: request.data)
        ready = threading.Event()
        thread = threading.Thread(target=service.serve, kwargs={"ready": ready.set})
        thread.start()
        try:
            assert ready.wait(WAIT_SECONDS)
            with Bus.connect(mini_bus.address) as caller:
                if how == "timeout":
                    timeout = 0.1
                    while not begun.is_set():
                        with pytest.raises(CallTimeout):
                            caller.call("slow", timeout=timeout)
                        timeout *= 2
                else:
                    abandoned = AbandonedCall(mini_bus)
                    assert begun.wait(WAIT_SECONDS)
                    abandoned.hang_up()
                assert caller.call("echo", "on", timeout=WAIT_SECONDS) == b"on"
            assert set(seen) == {True}
            counts = service.statistics.requests
            assert counts["answered"] == 1
            assert counts["requests"] == counts["cancelled"] + 1
        finally:
            service.stop_serving()
            thread.join(WAIT_SECONDS)


class AbandonedCall:
    """A call of ``slow`` whose caller is disconnected by the test."""

    def __init__(self, mini_bus: MiniBus) -> None:
        self._mini_bus = mini_bus
        self._bus = Bus.connect(mini_bus.address)
        self._connection = int(self._bus.address.split("/")[2])
        self._thread = threading.Thread(target=self._call)
        self._thread.start()

    def hang_up(self) -> None:
        self._mini_bus.hang_up(self._connection)
        self.join()

    def join(self) -> None:
        self._thread.join(WAIT_SECONDS)

    def _call(self) -> None:
        with self._bus, pytest.raises(ConnectionError):
            self._bus.call("slow", timeout=None)


def test_requests_that_arrive_meanwhile_are_run_afterwards(mini_bus: MiniBus, services: ServiceThreads) -> None:
    begun = threading.Event()

    def slow(request: Request) -> str:
        begun.set()
        return f"{request.cancelled.wait(0.5)}"

    services.add(slow=slow, echo=lambda request: request.data)
    answers: list[bytes] = []

    def call() -> None:
        with Bus.connect(mini_bus.address) as bus:
            answers.append(bus.call("slow", timeout=WAIT_SECONDS))

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(WAIT_SECONDS)
    with Bus.connect(mini_bus.address) as bus:
        assert bus.call("echo", "on", timeout=WAIT_SECONDS) == b"on"
    thread.join(WAIT_SECONDS)
    assert answers == [b"False"]


def test_a_request_of_which_the_bus_is_gone_is_cancelled(mini_bus: MiniBus, services: ServiceThreads) -> None:
    seen: list[bool] = []
    begun = threading.Event()

    def slow(request: Request) -> bytes:
        begun.set()
        seen.append(request.cancelled.wait(WAIT_SECONDS))
        return b""

    service = services.add(slow=slow)
    call = AbandonedCall(mini_bus)
    assert begun.wait(WAIT_SECONDS)
    mini_bus.hang_up(service.connection)
    service.thread.join(WAIT_SECONDS)
    assert seen == [True]
    call.join()


def test_a_refused_call_is_not_cancelled(mini_bus: MiniBus, services: ServiceThreads) -> None:
    """The bus would refuse the message too."""
    services.add(echo=lambda request: request.data)
    refused: list[bytes] = []

    def before(connection: BusConnection, packet: bytes) -> bool:
        if packet.startswith((b"MSG rpc/", b"MSG !/conn/1/rpc/")):
            refused.append(packet)
            connection.say(b"CMSG !/bus/error\0EPERM a rule")
            return True
        return False

    mini_bus.before = before
    with Bus.connect(mini_bus.address) as bus:
        with pytest.raises(Exception, match="EPERM a rule"):
            bus.call("echo")
        bus.ping()
    assert len(refused) == 1
