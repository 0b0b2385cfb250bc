"""Services on asyncio: many handlers at once, and an orderly end. That they answer, ``test_calls`` shows of both faces' callers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from sbusd.client import AsyncBus, Bus, RemoteError, Request
from sbusd.client.rpc.service import MAX_CONCURRENT_HANDLERS
from tests.support.minibus import WAIT_SECONDS, MiniBus


async def serving(bus: AsyncBus) -> asyncio.Task[None]:
    """Return the task that serves, once callers find it."""
    ready = asyncio.Event()
    task = asyncio.ensure_future(bus.serve(ready=ready.set))
    waiting = asyncio.ensure_future(ready.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return task


def run(mini_bus: MiniBus, main: Callable[[AsyncBus, AsyncBus], Awaitable[None]]) -> None:
    """Run *main* with a service's bus and a caller's."""

    async def both() -> None:
        async with AsyncBus.connect(mini_bus.address) as service, AsyncBus.connect(mini_bus.address) as caller:
            await main(service, caller)

    asyncio.run(asyncio.wait_for(both(), WAIT_SECONDS * 2))


def test_coroutines_and_plain_functions_serve(mini_bus: MiniBus) -> None:
    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        @service.service("plain")
        def plain(request: Request) -> bytes:
            return request.data

        @service.service("slow")
        async def slow(request: Request) -> str:
            await asyncio.sleep(0)
            return "slow " + request.data.decode()

        task = await serving(service)
        assert await caller.call("plain", "x") == b"x"
        assert await caller.call("slow", "x") == b"slow x"
        await service.close()
        await task

    run(mini_bus, main)


def test_many_run_at_once_and_no_more_than_many(mini_bus: MiniBus) -> None:
    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        running = 0
        most = 0
        full = asyncio.Event()

        @service.service("wait")
        async def wait(request: Request) -> bytes:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == MAX_CONCURRENT_HANDLERS:
                full.set()
            await full.wait()
            running -= 1
            return request.data

        task = await serving(service)
        count = MAX_CONCURRENT_HANDLERS + 20
        answers = await asyncio.gather(*(caller.call("wait", f"{number}") for number in range(count)))
        assert answers == [b"%d" % number for number in range(count)]
        assert most == MAX_CONCURRENT_HANDLERS
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(mini_bus, main)


def test_callers_being_served_at_the_end_get_an_error(mini_bus: MiniBus) -> None:
    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        begun = asyncio.Event()

        @service.service("slow")
        async def slow(request: Request) -> bytes:
            begun.set()
            await asyncio.Event().wait()
            return b""

        task = await serving(service)
        call = asyncio.ensure_future(caller.call("slow", timeout=None))
        await begun.wait()
        task.cancel()
        with pytest.raises(RemoteError, match="the service stopped while it ran the request"):
            await call
        assert await caller.members("rpc/slow") == ()

    run(mini_bus, main)


def test_a_failure_of_a_coroutine_is_one_line(mini_bus: MiniBus, caplog: pytest.LogCaptureFixture) -> None:
    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        @service.service("fail")
        async def fail(request: Request) -> bytes:
            raise LookupError("no such thing")

        task = await serving(service)
        with pytest.raises(RemoteError, match="the handler raised LookupError"):
            await caller.call("fail")
        assert service.statistics.requests == {"requests": 1, "failed": 1}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(mini_bus, main)
    assert "Traceback" in caplog.text


def test_a_service_may_call_another_on_the_same_connection(mini_bus: MiniBus) -> None:
    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        @service.service("inner")
        async def inner(request: Request) -> bytes:
            return b"inner " + request.data

        @service.service("outer")
        async def outer(request: Request) -> bytes:
            return b"outer " + await service.call("inner", request.data)

        task = await serving(service)
        assert await caller.call("outer", "x") == b"outer inner x"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(mini_bus, main)


def test_a_coroutine_function_cannot_be_served_by_a_program_that_waits(mini_bus: MiniBus, caplog: pytest.LogCaptureFixture) -> None:
    async def handler(request: Request) -> bytes:
        return b""

    def serve() -> None:
        with Bus.connect(mini_bus.address) as bus:
            bus.service("odd")(handler)
            bus.service("end")(end)
            with pytest.raises(SystemExit):
                bus.serve()

    def end(request: Request) -> None:
        raise SystemExit

    async def main(_service: AsyncBus, caller: AsyncBus) -> None:
        blocking = asyncio.get_running_loop().run_in_executor(None, serve)
        await asyncio.to_thread(mini_bus.wait_for, lambda: bool(mini_bus.members(b"rpc/end")))
        with pytest.raises(RemoteError, match="cannot run a coroutine function as a handler; serve it on an AsyncBus"):
            await caller.call("odd")
        with pytest.raises(RemoteError, match="stopped while it ran the request"):
            await caller.call("end")
        await blocking

    run(mini_bus, main)
    assert "serve it on an AsyncBus" in caplog.text


def test_serve_runs_once_at_a_time(mini_bus: MiniBus) -> None:
    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        service.service("echo")(lambda request: request.data)
        task = await serving(service)
        with pytest.raises(RuntimeError, match="already runs on this bus"):
            await service.serve()
        with pytest.raises(RuntimeError, match="cannot add the service 'late'"):
            service.service("late")(lambda request: request.data)
        assert await caller.call("echo", "x") == b"x"
        service.stop_serving()
        await task
        service.service("late")(lambda request: request.data)
        again = await serving(service)
        assert await caller.call("late", "x") == b"x"
        service.stop_serving()
        await again

    run(mini_bus, main)


def test_a_second_thread_cannot_serve_the_same_bus(mini_bus: MiniBus) -> None:
    with Bus.connect(mini_bus.address) as service, Bus.connect(mini_bus.address) as caller:
        service.service("echo")(lambda request: request.data)
        ready = threading.Event()
        thread = threading.Thread(target=service.serve, kwargs={"ready": ready.set})
        thread.start()
        assert ready.wait(WAIT_SECONDS)
        with pytest.raises(RuntimeError, match="already runs on this bus"):
            service.serve()
        assert caller.call("echo", "x") == b"x"
        service.stop_serving()
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def test_there_must_be_something_to_serve(mini_bus: MiniBus) -> None:
    with Bus.connect(mini_bus.address) as bus, pytest.raises(ValueError, match="nothing to serve"):
        bus.serve()
