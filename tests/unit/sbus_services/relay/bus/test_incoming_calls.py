"""Requests of remote hosts on the bus: who receives them, and the responses in every case."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from sbus import CallTimeout, Disconnected, ErrorCode, NoRecipient, PayloadTooLarge, PeerDisconnected, RemoteError, RemoteRefusal
from sbus_programs.config.relay import RelaySettings
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.relay.bus import incoming_calls
from sbus_services.relay.bus.client import RelayBus, RelayedInvocation
from sbus_services.relay.bus.incoming_calls import AT_ONCE, BusServices
from sbus_services.relay.message_model import RelayMessage
from sbus_services.relay.queue_handler import QueueHandler
from sbus_services.relay.redis import names
from sbus_services.relay.redis.client import RedisUnavailableError
from sbus_services.relay.redis.store import MessageStore

CONTEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
RAW = b"as it lies in Redis"


class FakeBus:
    """A bus whose service responds with *answer*, or raises it."""

    def __init__(self, answer: bytes | Exception = b"y") -> None:
        self.answer = answer
        self.refusal: Exception | None = None
        self.members_of: dict[bytes, int] = {b"relayed/echo": 1}
        self.calls: list[RelayedInvocation] = []
        self.running = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def members(self, key: bytes) -> range:
        if self.refusal is not None:
            raise self.refusal
        return range(self.members_of.get(key, 0))

    async def call_relayed(self, request: RelayedInvocation) -> bytes:
        self.calls.append(request)
        self.running += 1
        await self.may_answer.wait()
        self.running -= 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class FakeStore:
    """A store and queue handler that record calls; each step first fails *away* times."""

    def __init__(self) -> None:
        self.away = 0
        self.said = ("engaged", 30.0)
        self.engaged: list[bytes] = []
        self.counted: list[str] = []
        self.concluded: list[tuple[bytes, RelayMessage, str]] = []
        self.handed: list[tuple[bytes, str]] = []
        self.declined: list[tuple[str, str]] = []
        self.done = asyncio.Event()

    def fail(self) -> None:
        if self.away:
            self.away -= 1
            raise RedisUnavailableError("Redis: gone")

    async def engage(self, raw: bytes, request: RelayMessage) -> tuple[str, float]:
        self.fail()
        self.engaged.append(raw)
        return self.said

    async def count(self, name: str) -> None:
        self.counted.append(name)

    async def conclude(self, raw: bytes, reply: RelayMessage, queue: str) -> None:
        self.fail()
        self.concluded.append((raw, reply, queue))
        self.done.set()

    async def hand_over(self, raw: bytes, request: RelayMessage, queue: str) -> None:
        self.fail()
        self.handed.append((raw, queue))
        self.done.set()

    async def decline(self, raw: bytes, request: RelayMessage, words: str, queue: str) -> None:
        self.declined.append((words, queue))


class FakeMembership:
    """Has a bus, or none."""

    def __init__(self, bus: FakeBus | None) -> None:
        self.bus = cast("RelayBus | None", bus)
        self.left = ""

    async def reconnect(self, bus: RelayBus, reason: str) -> None:
        assert bus is self.bus
        self.bus, self.left = None, reason


def asked(number: int = 1, src: int = 1001, dat: bytes = b"x", ctx: str = "") -> RelayMessage:
    text = base64.b64encode(dat).decode()
    return RelayMessage(uid=f"1002.{number}", cmd="echo", exp=30, dat=text, src=src, dst=(1002,), ret=names.REPLY, ctx=ctx)


def services(store: FakeStore, membership: FakeMembership, reported: list[str], **settings: Any) -> BusServices:
    journal = LimitedLog("sbus-relay")
    journal.record_limited = lambda message, cause, **facts: reported.append(message.text(facts | {"count": 1}))  # type: ignore[method-assign]
    return BusServices(
        1002,
        RelaySettings(**settings),
        membership,
        store=cast(MessageStore, store),
        handler=cast(QueueHandler, store),
        journal=journal,
        clock=lambda: 7.0,
    )


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(300):
            await main()

    asyncio.run(bounded())


def outcome(answer: bytes | Exception, **settings: Any) -> tuple[FakeStore, list[str]]:
    """Return the result of a request to which a service responds with *answer*, and what is logged."""
    store, reported = FakeStore(), list[str]()

    async def main() -> None:
        store.done = asyncio.Event()
        made = services(store, FakeMembership(FakeBus(answer)), reported, **settings)
        assert await made.take(RAW, asked())
        await store.done.wait()
        await made.close()

    run(main)
    return store, reported


def test_a_request_is_run_and_answered() -> None:
    store, _ = outcome(b"\0y")
    ((raw, reply, queue),) = store.concluded
    assert (raw, queue) == (RAW, names.BUS)
    assert (reply.uid, reply.src, reply.dst, base64.b64decode(reply.dat), reply.err, reply.now) == ("1002.1", 1002, (1001,), b"\0y", "", 7)


def test_service_receives_caller_and_data() -> None:
    async def main() -> None:
        bus, store = FakeBus(), FakeStore()
        made = services(store, FakeMembership(bus), [])
        await made.take(RAW, asked(ctx=CONTEXT))
        await store.done.wait()
        (call,) = bus.calls
        assert call.context == CONTEXT
        assert store.concluded[0][1].ctx == ""
        assert (call.command, call.data, call.source, call.twin, call.key) == ("echo", b"x", 1001, 1002, b"relayed/echo")
        assert call.timeout is not None
        assert 0 < call.timeout <= 30

    run(main)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RemoteError("echo", "no such account"), "no such account"),
        (CallTimeout("echo", 30.0), "the service for echo on host 1002 did not respond in time; it may have run the request"),
        (PeerDisconnected("echo"), "the service for echo on host 1002 ended before it responded; it may have run the request"),
        (RemoteRefusal(ErrorCode.EPERM, "a rule"), "the bus rejected a call of its relay for echo on host 1002"),
        (
            Disconnected("/run/sbus.socket"),
            "the relay lost its bus before the service for echo on host 1002 responded; it may have run the request",
        ),
        (OSError("strange"), "the relay lost its bus before the service for echo on host 1002 responded; it may have run the request"),
    ],
)
def test_how_it_can_fail(error: Exception, says: str) -> None:
    store, reported = outcome(error)
    ((_, reply, queue),) = store.concluded
    assert (reply.err, reply.dat, reply.src, queue) == (says, "", 1002, names.BUS)
    assert bool(reported) is isinstance(error, RemoteRefusal)


def test_one_that_no_packet_holds() -> None:
    store, _ = outcome(PayloadTooLarge(500_000, 400_000))
    assert store.concluded[0][1].err.startswith("the request for echo on host 1002 is too large for the bus: ")


def test_an_answer_that_no_message_holds() -> None:
    store, _ = outcome(bytes(2_000), body_bytes=1_024)
    assert store.concluded[0][1].err.endswith(" bytes; the limit on host 1002 is 1024")


def test_request_without_recipient_goes_to_redis() -> None:
    store, _ = outcome(NoRecipient("echo"))
    assert (store.handed, store.concluded) == ([(RAW, names.BUS)], [])


def test_no_service_is_subscribed() -> None:
    async def main() -> None:
        bus, store, reported = FakeBus(), FakeStore(), list[str]()
        bus.members_of = {b"rpc/echo": 1}
        assert not await services(store, FakeMembership(bus), reported).take(RAW, asked())
        assert not await services(store, FakeMembership(None), reported).take(RAW, asked())
        bus.refusal = Disconnected("/run/sbus.socket")
        assert not await services(store, FakeMembership(bus), reported).take(RAW, asked())
        assert reported == []
        bus.refusal = RemoteRefusal(ErrorCode.EPERM, "a rule")
        assert not await services(store, FakeMembership(bus), reported).take(RAW, asked())
        assert "EPERM a rule" in reported[0]
        assert store.engaged == []

    run(main)


def test_a_bus_that_does_not_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would delay the requests for Redis too."""
    monkeypatch.setattr(incoming_calls, "ASK_SECONDS", 0.001)

    async def main() -> None:
        bus, store = FakeBus(), FakeStore()
        bus.members = lambda _key: asyncio.sleep(3_600)  # type: ignore[method-assign, assignment, return-value]
        membership = FakeMembership(bus)
        made = services(store, membership, [])
        assert not await made.take(RAW, asked())
        assert membership.left == "no response for 0.001 s"
        assert not await made.take(RAW, asked())

    run(main)


@pytest.mark.parametrize("said", ["lost", "late"])
def test_one_that_is_not_ours_or_too_late_is_not_run(said: str) -> None:
    async def main() -> None:
        bus, store = FakeBus(), FakeStore()
        store.said = (said, 0.0)
        assert await services(store, FakeMembership(bus), []).take(RAW, asked())
        assert bus.calls == []

    run(main)


def test_while_redis_is_away_nothing_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command may have run, so it is repeated until Redis responds."""
    monkeypatch.setattr(incoming_calls, "RETRY_SECONDS", 0.001)

    async def main() -> None:
        bus, store = FakeBus(), FakeStore()
        bus.may_answer.clear()
        made = services(store, FakeMembership(bus), [])
        store.away = 3
        assert await made.take(RAW, asked())
        assert (store.engaged, store.away) == ([RAW], 0)
        store.away = 3
        bus.may_answer.set()
        await store.done.wait()
        assert len(store.concluded) == 1

    run(main)


def test_of_one_host_and_command_not_too_many_run_at_once() -> None:
    async def main() -> None:
        bus, store = FakeBus(), FakeStore()
        bus.may_answer.clear()
        made = services(store, FakeMembership(bus), [])
        for number in range(AT_ONCE + 5):
            assert await made.take(b"%d" % number, asked(number))
        assert await made.take(b"other", asked(0, src=1003))
        while bus.running < AT_ONCE + 1:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert bus.running == AT_ONCE + 1
        bus.may_answer.set()
        while len(store.concluded) < AT_ONCE + 6:
            await asyncio.sleep(0)
        await made.close()

    run(main)


def test_host_at_the_limit_gets_an_error() -> None:
    async def main() -> None:
        bus, store = FakeBus(), FakeStore()
        bus.may_answer.clear()
        made = services(store, FakeMembership(bus), [], peer_requests=1)
        assert await made.take(b"1", asked(1))
        assert await made.take(b"2", asked(2))
        assert await made.take(b"3", asked(3, src=1003))
        assert store.declined == [("busy: 1 calls are already in progress for requests of host 1001 on host 1002", names.REMOTE)]
        assert (store.engaged, store.counted) == ([b"1", b"3"], ["requests-busy"])
        bus.may_answer.set()
        while len(store.concluded) < 2:
            await asyncio.sleep(0)
        assert await made.take(b"2", asked(2))
        assert store.engaged == [b"1", b"3", b"2"]
        await made.close()

    run(main)


def test_at_the_end_nothing_is_answered() -> None:
    """The request stays in Redis, and the next relay responds that it may have been run."""

    async def main() -> None:
        bus, store = FakeBus(), FakeStore()
        bus.may_answer.clear()
        made = services(store, FakeMembership(bus), [])
        await made.take(RAW, asked())
        await made.close()
        bus.may_answer.set()
        await asyncio.sleep(0)
        assert (store.concluded, store.handed) == ([], [])

    run(main)
