"""Services on asyncio: many handlers at once, and an orderly end. That they answer, ``test_calls`` shows of both faces' callers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable

import pytest

from sbus import Allow, AsyncBus, Bus, RemoteError, Request
from sbus.inbox import Inbox
from sbus.rpc.service import MAX_CONCURRENT_HANDLERS
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
            if request.data:
                begun.set()
                await asyncio.Event().wait()
            return b""

        task = await serving(service)
        # A caller that knows the service asks the bus nothing that the end of the service could overtake.
        await caller.call("slow")
        call = asyncio.ensure_future(caller.call("slow", "x", timeout=None))
        await begun.wait()
        task.cancel()
        with pytest.raises(RemoteError, match="the service stopped while it ran the request"):
            await call
        assert await caller.members("rpc/slow") == ()

    run(mini_bus, main)


@pytest.mark.parametrize("turns", range(6))
def test_each_caller_gets_a_response_wherever_the_end_interrupts(mini_bus: MiniBus, turns: int) -> None:
    """The service is cancelled *turns* iterations of the loop after its handlers may end: requests are queued, begin or are answered."""

    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        begun, go = 0, asyncio.Event()
        are_full = asyncio.Event()

        @service.service("wait")
        async def wait(request: Request) -> bytes:
            nonlocal begun
            if not request.data:
                return b""
            begun += 1
            if begun == MAX_CONCURRENT_HANDLERS:
                are_full.set()
            await go.wait()
            return request.data

        task = await serving(service)
        await caller.call("wait")  # the caller knows the service from now on, as above
        calls = [asyncio.ensure_future(caller.call("wait", "x", timeout=WAIT_SECONDS)) for _ in range(2 * MAX_CONCURRENT_HANDLERS)]
        await are_full.wait()
        while service.statistics.requests.get("requests") != 1 + len(calls):
            await asyncio.sleep(0.001)
        go.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [each for each in answers if each != b"x" and not isinstance(each, RemoteError)] == []

    run(mini_bus, main)


def test_unread_requests_are_answered_when_a_drain_is_cancelled(mini_bus: MiniBus) -> None:
    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        service.service("work")(lambda request: request.data)
        service.service("denied", allow=Allow(users=(os.getuid() + 1,)))(lambda request: request.data)

        async def stalled(_inbox: Inbox, _timeout: float | None) -> None:
            await asyncio.Event().wait()

        service._link.receive = stalled  # type: ignore[assignment, method-assign]
        task = await serving(service)
        work, denied = (asyncio.ensure_future(caller.call(command, timeout=WAIT_SECONDS)) for command in ("work", "denied"))
        assert service._dispatcher is not None
        inbox = service._dispatcher.inbox
        assert inbox is not None
        while len(inbox) < 2:
            await asyncio.sleep(0.001)
        mini_bus.before = lambda connection, packet: connection.number == 1 and b"ping" in packet  # the drain does not end
        service.stop_serving()
        task.cancel()
        with pytest.raises(RemoteError, match="the service stopped before it ran the request"):
            await work
        with pytest.raises(RemoteError, match="may not call"):
            await denied

    run(mini_bus, main)


def test_a_response_that_waits_for_room_is_sent_at_the_end(mini_bus: MiniBus) -> None:
    async def main(service: AsyncBus, caller: AsyncBus) -> None:
        service.service("work")(lambda _request: b"done")
        task = await serving(service)
        writer, is_waiting = service._link.writer, asyncio.Event()
        send = writer.send

        async def full(packet: bytes) -> None:
            writer.send = send  # type: ignore[method-assign]
            is_waiting.set()
            await asyncio.Event().wait()

        writer.send = full  # type: ignore[method-assign]
        call = asyncio.ensure_future(caller.call("work", timeout=WAIT_SECONDS))
        await is_waiting.wait()
        task.cancel()
        assert await call == b"done"

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


def test_unread_requests_are_answered_when_a_blocking_service_is_interrupted(mini_bus: MiniBus) -> None:
    has_begun, goes_on, are_answered = threading.Event(), threading.Event(), threading.Event()

    def serve() -> None:
        with Bus.connect(mini_bus.address) as bus:

            @bus.service("work")
            def work(request: Request) -> bytes:
                has_begun.set()
                assert goes_on.wait(WAIT_SECONDS)
                raise SystemExit

            bus.service("denied", allow=Allow(users=(os.getuid() + 1,)))(lambda request: request.data)
            with pytest.raises(SystemExit):
                bus.serve(ready=is_ready.set)
            assert are_answered.wait(2 * WAIT_SECONDS)  # the end of the connection would be an answer too

    async def main() -> None:
        async with AsyncBus.connect(mini_bus.address) as caller:
            running = asyncio.ensure_future(caller.call("work", timeout=WAIT_SECONDS))
            assert await asyncio.to_thread(has_begun.wait, WAIT_SECONDS)
            unread, denied = (asyncio.ensure_future(caller.call(command, timeout=WAIT_SECONDS)) for command in ("work", "denied"))
            received = mini_bus.connections[max(mini_bus.connections)].received
            requests = (b"MSG rpc/work\0", b"MSG rpc/denied\0")
            await asyncio.to_thread(mini_bus.wait_for, lambda: sum(each.startswith(requests) for each in received) == 3)
            goes_on.set()
            for call, words in ((running, "while it ran"), (unread, "before it ran"), (denied, "may not call")):
                with pytest.raises(RemoteError, match=words):
                    await call

    is_ready = threading.Event()
    server = threading.Thread(target=serve)
    server.start()
    try:
        assert is_ready.wait(WAIT_SECONDS)
        asyncio.run(asyncio.wait_for(main(), 2 * WAIT_SECONDS))
    finally:
        are_answered.set()
        server.join(WAIT_SECONDS)
    assert not server.is_alive()
