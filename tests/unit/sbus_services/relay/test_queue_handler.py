"""The queue handler with a real Redis: immediate sending, errors, and exactly one response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sbus_programs.config.relay import RelaySettings
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.relay.message_model import RelayMessage
from sbus_services.relay.queue_handler import ABANDONED_WORDS, FULL_WORDS, QueueHandler
from sbus_services.relay.redis import names
from sbus_services.relay.redis.store import Claim, MessageStore
from tests.support.bus_hosts import FIRST, SECOND
from tests.support.message_stores import opened
from tests.support.relays import RedisServer, request

pytestmark = pytest.mark.slow

NOW = 1_795_000_000.0


class FakeSender:
    """A sender with capacity for a number of messages."""

    def __init__(self, most: int = 100) -> None:
        self.begun: list[Claim] = []
        self._most = most

    def hold_seconds(self, _twin: int) -> float:
        """Return for how long a message is held."""
        return 60.0 if len(self.begun) < self._most else 0.0

    def begin(self, claim: Claim) -> None:
        """Record a sent message."""
        self.begun.append(claim)


class HandlerFixture:
    """The queue handler of the first host, with its Redis."""

    def __init__(self, store: MessageStore, client: Any, sender: FakeSender, settings: RelaySettings) -> None:
        self.store = store
        self.client = client
        self.sender = sender
        self.woken = 0
        self.handler = QueueHandler(FIRST, settings, store, LimitedLog("sbus-relay"), wake=self._wake, clock=lambda: NOW)
        self.handler.sender = sender

    def _wake(self) -> None:
        self.woken += 1

    async def put(self, queue: str, message: dict[str, Any] | bytes) -> None:
        """Push *message* to *queue*, and process it."""
        self.client.rpush(queue, message if isinstance(message, bytes) else json.dumps(message))
        for raw in await self.store.take(queue, 10):
            await self.handler.take(queue, raw)
        assert self.client.llen(names.taken(self.store.relay, queue)) == 0

    def answers(self, ret: str) -> list[RelayMessage]:
        """Return the messages in the queue *ret*."""
        return [RelayMessage.parse(raw) for raw in self.client.lrange(ret, 0, -1)]


def run_with_handler(server: RedisServer, body: Callable[[HandlerFixture], Awaitable[None]], *, sender: int = 100, **settings: Any) -> None:
    """Run *body* with a queue handler whose sender has capacity for *sender* messages."""

    async def run() -> None:
        async with opened(server, **settings) as store, asyncio.timeout(300):
            with server.client() as client:
                await body(HandlerFixture(store, client, FakeSender(sender), RelaySettings(twin=FIRST, **settings)))

    asyncio.run(run())


def asked(*dst: int, **members: Any) -> dict[str, Any]:
    """Return a client's request."""
    return request("x", *dst, **{"ret": "ret", "now": int(NOW), **members})


def test_a_request_becomes_one_for_each_destination_and_is_sent_at_once(server: RedisServer) -> None:
    async def body(fixture: HandlerFixture) -> None:
        await fixture.put(names.LOCAL, asked(SECOND, 1003))
        assert [(claim.id, claim.twin) for claim in fixture.sender.begun] == [("q:1002.1", SECOND), ("q:1003.1", 1003)]
        sent = [RelayMessage.parse(claim.body) for claim in fixture.sender.begun]
        assert [(message.src, message.dst, message.ret) for message in sent] == [(FIRST, (SECOND,), "ret"), (FIRST, (1003,), "ret")]
        assert fixture.woken == 0

    run_with_handler(server, body)


def test_a_service_of_another_implementation_responds_with_the_reference_only(server: RedisServer) -> None:
    async def body(fixture: HandlerFixture) -> None:
        await fixture.put(names.LOCAL, asked(FIRST, ref="mine", tag="words"))
        (raw,) = await fixture.store.take(names.REMOTE, 10)
        await fixture.handler.take(names.REMOTE, raw)
        (delivered,) = fixture.answers("msgbus.x")
        assert (delivered.ref, delivered.tag) == (delivered.uid, "words")
        await fixture.put(names.REPLY, {"ver": 1, "ref": delivered.ref, "dat": "eA==", "dst": str(FIRST), "err": None})
        (response,) = fixture.answers("ret")
        assert (response.ref, response.tag, response.dat, response.err) == ("mine", "words", "eA==", "")

    run_with_handler(server, body)


@pytest.mark.parametrize("exp", [1, 0])
def test_an_error_has_the_reference_of_its_request(server: RedisServer, exp: int) -> None:
    async def body(fixture: HandlerFixture) -> None:
        await fixture.put(names.LOCAL, asked(SECOND, ref="mine", exp=exp or 10**9))
        if exp:
            fixture.client.zadd(names.DEADLINES, {"1002.1": 1})
            assert await fixture.handler.expire(10) == 1
        (response,) = fixture.answers("ret")
        assert (response.ref, bool(response.err)) == ("mine", True)

    run_with_handler(server, body)


def test_without_capacity_it_waits_and_the_sender_is_woken(server: RedisServer) -> None:
    async def body(fixture: HandlerFixture) -> None:
        await fixture.put(names.LOCAL, asked(SECOND))
        assert (fixture.sender.begun, fixture.woken) == ([], 1)
        assert await fixture.store.twins() == [SECOND]

    run_with_handler(server, body, sender=0)


def test_request_to_this_host_needs_no_sender(server: RedisServer) -> None:
    async def body(fixture: HandlerFixture) -> None:
        await fixture.put(names.LOCAL, asked(FIRST))
        assert (fixture.sender.begun, fixture.woken) == ([], 0)
        (raw,) = await fixture.store.take(names.REMOTE, 10)
        await fixture.handler.take(names.REMOTE, raw)
        (delivered,) = fixture.answers("msgbus.x")
        await fixture.put(names.REPLY, json.loads(delivered.with_(dat="eA==").encode()))
        assert [(answer.dat, answer.src) for answer in fixture.answers("ret")] == [("eA==", FIRST)]
        assert fixture.client.hlen(names.BACKLOG) == 0

    run_with_handler(server, body)


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"cmd": ""}, "cmd: missing"),
        ({"cmd": "system.local"}, "cmd: reserved for the relay itself"),
        ({"dst": []}, "dst: missing or empty"),
        ({"exp": 100_000}, "exp: 100000 s exceeds the maximum"),
        ({"now": int(NOW) - 5_000}, "expired: the request is older"),
        ({"dat": "?"}, "dat: not valid base64"),
        ({"ver": 2}, "ver: "),
    ],
)
def test_request_that_cannot_be_sent_gets_an_error(server: RedisServer, members: dict[str, Any], says: str) -> None:
    async def body(fixture: HandlerFixture) -> None:
        await fixture.put(names.LOCAL, {**asked(SECOND), **members})
        (answer,) = fixture.answers("ret")
        assert says in answer.err
        assert fixture.sender.begun == []
        assert fixture.client.hlen(names.BACKLOG) == 0

    run_with_handler(server, body)


@pytest.mark.parametrize("message", [b"nonsense", b"[]", b"\xff", b"{" * 5_000])
def test_malformed_message_is_kept_and_logged(server: RedisServer, message: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(fixture: HandlerFixture) -> None:
        await fixture.put(names.LOCAL, message)
        assert fixture.client.lrange(names.REFUSED, 0, -1) == [message]

    run_with_handler(server, body)
    assert "rejected 1 malformed messages in msgbus.system.local" in capfd.readouterr().err


def test_a_return_queue_of_the_bus_is_not_written_to(server: RedisServer) -> None:
    async def body(fixture: HandlerFixture) -> None:
        await fixture.put(names.LOCAL, asked(SECOND, ret="msgbus.y"))
        assert fixture.client.exists("msgbus.y") == 0
        assert fixture.client.llen(names.REFUSED) == 1

    run_with_handler(server, body)


def test_a_message_that_is_too_large_is_refused(server: RedisServer) -> None:
    async def body(fixture: HandlerFixture) -> None:
        await fixture.put(names.LOCAL, asked(SECOND, dat=b"x" * 2_000))
        assert fixture.sender.begun == []
        assert fixture.client.llen(names.REFUSED) == 1

    run_with_handler(server, body, body_bytes=1_024)


def test_full_backlog_is_an_error_and_is_logged(server: RedisServer, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(fixture: HandlerFixture) -> None:
        await fixture.put(names.LOCAL, asked(SECOND))
        await fixture.put(names.LOCAL, asked(SECOND, ret="second"))
        assert [answer.err for answer in fixture.answers("second")] == [FULL_WORDS]

    run_with_handler(server, body, backlog_messages=1)
    assert "queue msgbus.system.backlog full" in capfd.readouterr().err


async def received(fixture: HandlerFixture, number: int = 1) -> RelayMessage:
    """Receive a request of the second host; return it."""
    message = RelayMessage(uid=f"{FIRST}.{number}", cmd="x", src=SECOND, dst=(FIRST,), ret=names.REPLY, exp=60, now=int(NOW))
    assert await fixture.store.accept(SECOND, message, str(number), 60.0) == "accepted"
    (raw,) = await fixture.store.take(names.REMOTE, 10)
    await fixture.handler.take(names.REMOTE, raw)
    return message


def answer_of(message: RelayMessage, **members: Any) -> dict[str, Any]:
    """Return the response of an application."""
    value: dict[str, Any] = json.loads(message.with_(src=FIRST, dst=(SECOND,), dat="eA==").encode())
    return {**value, **members}


def test_the_answer_of_an_application_is_sent_at_once_and_no_second(server: RedisServer, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(fixture: HandlerFixture) -> None:
        message = await received(fixture)
        assert fixture.answers("msgbus.x") == [message]
        await fixture.put(names.REPLY, answer_of(message))
        (claim,) = fixture.sender.begun
        assert (claim.id, RelayMessage.parse(claim.body).dat) == ("r:1002:1001.1", "eA==")
        await fixture.put(names.REPLY, answer_of(message))
        assert len(fixture.sender.begun) == 1

    run_with_handler(server, body)
    assert "host 1002 has not sent request 1001.1, or has its response" in capfd.readouterr().err


def test_application_cannot_respond_for_another_host(server: RedisServer, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither to a request of its own host, nor to one of another."""

    async def body(fixture: HandlerFixture) -> None:
        message = await received(fixture)
        await fixture.put(names.REPLY, answer_of(message, src=1003))
        await fixture.put(names.LOCAL, asked(SECOND))
        begun = fixture.sender.begun[:]
        forged = json.loads(RelayMessage.parse(begun[0].body).with_(src=SECOND, dst=(FIRST,)).encode())
        await fixture.put(names.REPLY, forged)
        await fixture.put(names.REPLY, {**forged, "src": 1003})
        assert fixture.answers("ret") == []
        assert fixture.sender.begun == begun

    run_with_handler(server, body)
    reported = capfd.readouterr().err
    assert "response to 1002.1 that host 1002 did not send" in reported
    assert "src: a response must name this host" in reported


def test_request_is_declined_when_the_queue_of_its_command_is_full(server: RedisServer) -> None:
    async def body(fixture: HandlerFixture) -> None:
        fixture.client.rpush("msgbus.x", "another")
        await received(fixture)
        (claim,) = fixture.sender.begun
        reply = RelayMessage.parse(claim.body)
        assert (reply.src, reply.dst) == (FIRST, (SECOND,))
        assert "too many unfetched requests for x" in reply.err

    run_with_handler(server, body, queue_messages=1)


def test_requests_of_a_service_whose_relay_died_get_a_response(server: RedisServer) -> None:
    async def body(fixture: HandlerFixture) -> None:
        message = RelayMessage(uid=f"{FIRST}.1", cmd="x", src=SECOND, dst=(FIRST,), ret=names.REPLY)
        await fixture.store.accept(SECOND, message, "d", 60.0)
        fixture.client.delete(names.REMOTE)
        await fixture.put(names.ABANDONED, message.encode())
        (claim,) = fixture.sender.begun
        assert RelayMessage.parse(claim.body).err == ABANDONED_WORDS.format(twin=FIRST, cmd="x")

    run_with_handler(server, body)


def test_an_expired_request_gets_one_response(server: RedisServer) -> None:
    async def body(fixture: HandlerFixture) -> None:
        await fixture.put(names.LOCAL, asked(SECOND, exp=7))
        assert await fixture.handler.expire(10) == 0
        fixture.client.zadd(names.DEADLINES, {"1002.1": 1})
        assert await fixture.handler.expire(10) == 1
        assert await fixture.handler.expire(10) == 0
        assert [answer.err for answer in fixture.answers("ret")] == ["expired: no response within 7 s"]

    run_with_handler(server, body)


def test_undeliverable_response_is_logged(server: RedisServer, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(fixture: HandlerFixture) -> None:
        fixture.client.set("ret", "not a list")
        await fixture.put(names.LOCAL, asked(SECOND))
        fixture.client.zadd(names.DEADLINES, {"1002.1": 1})
        assert await fixture.handler.expire(10) == 1

    run_with_handler(server, body)
    assert "dropped 1 responses for return queue ret" in capfd.readouterr().err
