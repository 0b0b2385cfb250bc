"""A directory service that answers slowly stalls only the requests of the users whose groups it is asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from sbus import Allow, AsyncBus, RemoteError, Request
from sbus.asyncio import caller_groups
from sbus.asyncio.look_ups import LookUps
from sbus.asyncio.service_bus import ServiceBus
from tests.support.held_directory import HeldDirectory
from tests.support.minibus import MiniBus

WAIT_SECONDS = 60.0
SLOW, DENIED, OTHER, QUICK = 1001, 1002, 1003, 1004
IDS = range(100_000, 100_012)
"""Ids that are charged to SLOW."""

GROUP = 4_711


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldDirectory]:
    """The directory of the service."""
    made = HeldDirectory(QUICK, {QUICK: frozenset({GROUP}), SLOW: frozenset({GROUP})})
    monkeypatch.setattr(caller_groups, "groups_of", made.groups_of)
    monkeypatch.setattr(caller_groups, "LookUps", partial(LookUps, WAIT_SECONDS))
    yield made
    made.answers.set()


def test_a_slow_look_up_stalls_only_the_requests_that_need_it(mini_bus: MiniBus, directory: HeldDirectory) -> None:
    mini_bus.uids = {2: SLOW, 3: DENIED, 4: OTHER}
    order: list[bytes] = []

    async def main() -> None:
        service, *callers = [await AsyncBus.connect(mini_bus.address) for _ in range(4)]
        slow, denied, other = callers

        @service.service("groups", allow=Allow(users=(OTHER,), groups=(GROUP,)))
        def groups(request: Request) -> bytes:
            order.append(request.data)
            return request.data

        ready = asyncio.Event()
        running = asyncio.ensure_future(service.serve(ready=ready.set))
        await ready.wait()
        calls = [asyncio.ensure_future(slow.call("groups", str(number), timeout=WAIT_SECONDS)) for number in range(9)]
        refused = asyncio.ensure_future(denied.call("groups", timeout=WAIT_SECONDS))
        cancelled = asyncio.ensure_future(slow.call("groups", "cancelled", timeout=WAIT_SECONDS))
        while sorted(directory.asked) != [SLOW, DENIED]:
            await asyncio.sleep(0.01)
        await slow.ping()
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        await slow.ping()
        assert await other.call("groups", "other", timeout=WAIT_SECONDS) == b"other"
        directory.answers.set()
        assert [bytes(each) for each in await asyncio.gather(*calls)] == [b"%d" % number for number in range(9)]
        with pytest.raises(RemoteError, match=f"user {DENIED} may not call groups"):
            await refused
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for each in (service, *callers):
            await each.close()

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS * 2))
    assert order == [b"other", *(b"%d" % number for number in range(9))]


def test_a_service_that_stops_answers_the_requests_that_wait(mini_bus: MiniBus, directory: HeldDirectory) -> None:
    mini_bus.uids = {2: SLOW}

    async def main() -> None:
        service, caller = [await AsyncBus.connect(mini_bus.address) for _ in range(2)]
        service.service("groups", allow=Allow(groups=(GROUP,)))(lambda request: request.data)
        ready = asyncio.Event()
        running = asyncio.ensure_future(service.serve(ready=ready.set))
        await ready.wait()
        call = asyncio.ensure_future(caller.call("groups", timeout=WAIT_SECONDS))
        while not directory.asked:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        with pytest.raises(RemoteError, match="the service stopped before it ran the request"):
            await call
        await caller.close()
        await service.close()

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS * 2))


def test_a_request_is_rejected_if_no_thread_can_start(mini_bus: MiniBus, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    mini_bus.uids = {2: SLOW}

    async def main() -> None:
        async with AsyncBus.connect(mini_bus.address) as service, AsyncBus.connect(mini_bus.address) as caller:
            service.service("groups", allow=Allow(groups=(GROUP,)))(lambda request: request.data)
            ready = asyncio.Event()
            running = asyncio.ensure_future(service.serve(ready=ready.set))
            await ready.wait()
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", no_room)
                with pytest.raises(RemoteError, match="the service cannot check its callers"):
                    await caller.call("groups", timeout=WAIT_SECONDS)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS * 2))


def test_the_ids_of_a_user_do_not_delay_the_calls_of_others(mini_bus: MiniBus, directory: HeldDirectory) -> None:
    """Eight threads looked up the groups of all users in the order of their requests: eight look-ups without end were the last ones."""
    mini_bus.uids = {2: QUICK, **{3 + number: uid for number, uid in enumerate(IDS)}}

    async def main() -> None:
        service = await ServiceBus.connect(mini_bus.address)
        quick, *slow = [await AsyncBus.connect(mini_bus.address) for _ in range(1 + len(IDS))]
        service.service("groups", allow=Allow(groups=(GROUP,)))(lambda request: request.data)
        ready = asyncio.Event()
        running = asyncio.ensure_future(service.serve_all(lambda uid: SLOW if uid in IDS else uid, ready.set))
        await ready.wait()
        hung = [asyncio.ensure_future(each.call("groups", timeout=WAIT_SECONDS)) for each in slow]
        while not directory.asked:
            await asyncio.sleep(0.01)
        for each in slow:
            await each.ping()
        assert await quick.call("groups", "quick", timeout=WAIT_SECONDS) == b"quick"
        assert directory.asked[0] in IDS
        assert directory.asked[1:] == [QUICK]
        running.cancel()
        await asyncio.gather(running, *hung, return_exceptions=True)
        for bus in (service, quick, *slow):
            await bus.close()

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS * 2))


def test_a_look_up_without_end_is_an_error_of_the_call(
    mini_bus: MiniBus, directory: HeldDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    mini_bus.uids = {2: SLOW}
    monkeypatch.setattr(caller_groups, "LookUps", partial(LookUps, 0.05))

    async def main() -> None:
        async with AsyncBus.connect(mini_bus.address) as service, AsyncBus.connect(mini_bus.address) as caller:
            service.service("groups", allow=Allow(groups=(GROUP,)))(lambda request: request.data)
            ready = asyncio.Event()
            running = asyncio.ensure_future(service.serve(ready=ready.set))
            await ready.wait()
            for _ in range(2):
                with pytest.raises(RemoteError, match="the service cannot check its callers"):
                    await caller.call("groups", timeout=WAIT_SECONDS)
            assert directory.asked == [SLOW]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS * 2))
