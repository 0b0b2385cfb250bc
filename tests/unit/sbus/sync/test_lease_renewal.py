"""When the client stops renewing the lease of a job: for each call that ends it, and each outcome, in both Python clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbus import SbusError, TimedOut
from sbus.asyncio.store import AsyncJob, AsyncStore
from sbus.protocol.framed_data import framed_data
from sbus.store.items import Lease, StoredMessage
from sbus.sync.store import Job, Store

NUMBER = 7
STALE = framed_data({"errors": {str(NUMBER): ["ESTALE", "the lease has ended"]}})
FAILED = framed_data({"errors": {str(NUMBER): ["EIO", "the disk"]}})
DONE = framed_data({})
TIMED_OUT = TimedOut("waiting", 1.0)

OUTCOMES = [(DONE, False, False), (STALE, False, True), (FAILED, True, False), (TIMED_OUT, True, False)]
"""What the store answers; then whether the lease is still renewed, and whether it is lost."""

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "ack": lambda _store, job: job.ack(),
    "retry": lambda _store, job: job.retry(),
    "fail": lambda _store, job: job.fail("no"),
    "ack_many": lambda store, job: store.ack_many([job]),
}


class Bus:
    """A bus whose store answers *answer* to a call that ends a lease. It notes whether the lease is then renewed."""

    def __init__(self, answer: bytes | SbusError) -> None:
        self.answer = answer
        self.is_renewed: Callable[[], bool] = lambda: False
        self.renewed: list[bool] = []
        self.called: list[str] = []
        self._link = SimpleNamespace(target=SimpleNamespace(text="/run/sbus.socket"))

    def answered(self) -> bytes:
        """Return the answer of a call, or raise it."""
        self.renewed.append(self.is_renewed())
        if isinstance(self.answer, SbusError):
            raise self.answer
        return self.answer


class BlockingBus(Bus):
    def call(self, command: str, _data: bytes, **_options: object) -> bytes:
        self.called.append(command)
        return self.answered()


class AsyncBus(Bus):
    async def call(self, command: str, _data: bytes, **_options: object) -> bytes:
        self.called.append(command)
        return self.answered()


def lease() -> Lease:
    return Lease(NUMBER, StoredMessage("mail", 1, 0.0, b"mail/a", b"", 0, 0, 1), 1, 0.0, 3_600.0)


async def outcome(call: Callable[[], Any]) -> None:
    """Make a call of one of the clients, which may fail."""
    try:
        result = call()
        if isinstance(result, Awaitable):
            await result
    except SbusError:
        pass


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(("answer", "is_renewed", "is_lost"), OUTCOMES, ids=["done", "stale", "failed", "timed out"])
def test_a_lease_is_renewed_until_it_has_ended(
    name: str, answer: bytes | SbusError, is_renewed: bool, is_lost: bool, is_async: bool
) -> None:
    async def scenario() -> None:
        bus: Any = AsyncBus(answer) if is_async else BlockingBus(answer)
        store, kind, renewals = made(bus)
        job = kind(store, "mail", lease(), None)
        store._renewal.add(job._renew, 3_600.0)
        bus.is_renewed = lambda: job._renew in renewals
        await outcome(lambda: CALLS[name](store, job))
        assert bus.renewed == [True]
        assert (job._renew in renewals, job.is_lost, job.is_settled) == (is_renewed, is_lost, answer == DONE)
        store._renewal.remove(job._renew)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", [None, ValueError()], ids=["success", "error"])
@pytest.mark.parametrize("answer", [DONE, FAILED], ids=["done", "failed"])
def test_the_end_of_a_block_renews_the_lease_until_the_answer(answer: bytes, error: Exception | None, is_async: bool) -> None:
    async def scenario() -> None:
        bus: Any = AsyncBus(answer) if is_async else BlockingBus(answer)
        store, kind, renewals = made(bus)
        job = kind(store, "mail", lease(), None)
        bus.is_renewed = lambda: job._renew in renewals
        if is_async:
            await job.__aenter__()
            await outcome(lambda: job.__aexit__(error and type(error), error, None))
        else:
            job.__enter__()
            await outcome(lambda: job.__exit__(error and type(error), error, None))
        assert bus.renewed == [True]
        assert job._renew not in renewals

    asyncio.run(scenario())


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("name", ["retry", "fail"])
@pytest.mark.parametrize("answer", [FAILED, TIMED_OUT], ids=["failed", "timed out"])
def test_a_job_that_failed_is_never_acknowledged_by_a_loop(name: str, answer: bytes | SbusError, is_async: bool) -> None:
    """The store may not have got the failure: then the job is tried again when its lease ends."""

    async def scenario() -> None:
        bus: Any = AsyncBus(answer) if is_async else BlockingBus(answer)
        store, kind, _ = made(bus)
        job = kind(store, "mail", lease(), None)
        await outcome(lambda: CALLS[name](store, job))
        bus.answer = DONE
        await outcome(job._finish)
        assert bus.called == [f"store/{name}"]
        await outcome(job.ack)
        assert job.is_settled

    asyncio.run(scenario())


def made(bus: Any) -> tuple[Any, Any, Any]:
    """Return a store of *bus*, its class of jobs, and the leases that it renews."""
    if isinstance(bus, AsyncBus):
        store = AsyncStore(cast("Any", bus))
        return store, AsyncJob, store._renewal._timers
    blocking = Store(cast("Any", bus))
    return blocking, Job, blocking._renewal._due
