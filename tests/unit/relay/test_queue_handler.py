"""What becomes of each message in the queues, in a real Redis: sent at once where there is room, refused in words, answered once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sbusd.config.relay import RelaySettings
from sbusd.relay.log_messages import RelayLog
from sbusd.relay.message_model import Message
from sbusd.relay.queue_handler import ABANDONED_WORDS, FULL_WORDS, Desk
from sbusd.relay.redis import names
from sbusd.relay.redis.store import Claim, Store
from tests.support.relays import RedisServer, request
from tests.support.stores import opened
from tests.support.towns import FIRST, SECOND

NOW = 1_795_000_000.0


class Room:
    """Room for so many messages on their way to other hosts."""

    def __init__(self, most: int = 100) -> None:
        self.begun: list[Claim] = []
        self._most = most

    def hold_seconds(self, _twin: int) -> float:
        """Return for how long one is held."""
        return 60.0 if len(self.begun) < self._most else 0.0

    def begin(self, claim: Claim) -> None:
        """Take note of what is sent."""
        self.begun.append(claim)


class Office:
    """A desk of the first twin, with its Redis."""

    def __init__(self, store: Store, client: Any, room: Room, settings: RelaySettings) -> None:
        self.store = store
        self.client = client
        self.room = room
        self.woken = 0
        self.desk = Desk(FIRST, settings, store, RelayLog(), wake=self._wake, clock=lambda: NOW)
        self.desk.sends = room

    def _wake(self) -> None:
        self.woken += 1

    async def put(self, queue: str, message: dict[str, Any] | bytes) -> None:
        """Put *message* into *queue*, and have the desk deal with it."""
        self.client.rpush(queue, message if isinstance(message, bytes) else json.dumps(message))
        for raw in await self.store.take(queue, 10):
            await self.desk.take(queue, raw)
        assert self.client.llen(names.taken(self.store.relay, queue)) == 0

    def answers(self, ret: str) -> list[Message]:
        """Return what is in the queue *ret*."""
        return [Message.parse(raw) for raw in self.client.lrange(ret, 0, -1)]


def open_office(server: RedisServer, body: Callable[[Office], Awaitable[None]], *, room: int = 100, **settings: Any) -> None:
    """Run *body* at a desk with *room* for so many messages on their way."""

    async def run() -> None:
        async with opened(server, **settings) as store, asyncio.timeout(30):
            with server.client() as client:
                await body(Office(store, client, Room(room), RelaySettings(twin=FIRST, **settings)))

    asyncio.run(run())


def asked(*dst: int, **members: Any) -> dict[str, Any]:
    """Return a client's request."""
    return request("x", *dst, **{"ret": "ret", "now": int(NOW), **members})


def test_a_request_becomes_one_for_each_destination_and_is_sent_at_once(server: RedisServer) -> None:
    async def body(office: Office) -> None:
        await office.put(names.LOCAL, asked(SECOND, 1003))
        assert [(claim.id, claim.twin) for claim in office.room.begun] == [("q:1002.1", SECOND), ("q:1003.1", 1003)]
        sent = [Message.parse(claim.body) for claim in office.room.begun]
        assert [(message.src, message.dst, message.ret) for message in sent] == [(FIRST, (SECOND,), "ret"), (FIRST, (1003,), "ret")]
        assert office.woken == 0

    open_office(server, body)


def test_without_room_it_waits_and_somebody_is_woken(server: RedisServer) -> None:
    async def body(office: Office) -> None:
        await office.put(names.LOCAL, asked(SECOND))
        assert (office.room.begun, office.woken) == ([], 1)
        assert await office.store.twins() == [SECOND]

    open_office(server, body, room=0)


def test_one_for_this_twin_needs_no_other_host(server: RedisServer) -> None:
    async def body(office: Office) -> None:
        await office.put(names.LOCAL, asked(FIRST))
        assert (office.room.begun, office.woken) == ([], 0)
        (raw,) = await office.store.take(names.REMOTE, 10)
        await office.desk.take(names.REMOTE, raw)
        (delivered,) = office.answers("msgbus.x")
        await office.put(names.REPLY, json.loads(delivered.with_(dat="eA==").encode()))
        assert [(answer.dat, answer.src) for answer in office.answers("ret")] == [("eA==", FIRST)]
        assert office.client.hlen(names.BACKLOG) == 0

    open_office(server, body)


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
def test_a_request_that_cannot_be_sent_is_answered_in_words(server: RedisServer, members: dict[str, Any], says: str) -> None:
    async def body(office: Office) -> None:
        await office.put(names.LOCAL, {**asked(SECOND), **members})
        (answer,) = office.answers("ret")
        assert says in answer.err
        assert office.room.begun == []
        assert office.client.hlen(names.BACKLOG) == 0

    open_office(server, body)


@pytest.mark.parametrize("message", [b"nonsense", b"[]", b"\xff", b"{" * 5_000])
def test_what_is_no_message_is_kept_and_told(server: RedisServer, message: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(office: Office) -> None:
        await office.put(names.LOCAL, message)
        assert office.client.lrange(names.REFUSED, 0, -1) == [message]

    open_office(server, body)
    assert "rejected 1 malformed messages in msgbus.system.local" in capfd.readouterr().err


def test_a_return_queue_of_the_bus_is_not_written_to(server: RedisServer) -> None:
    async def body(office: Office) -> None:
        await office.put(names.LOCAL, asked(SECOND, ret="msgbus.y"))
        assert office.client.exists("msgbus.y") == 0
        assert office.client.llen(names.REFUSED) == 1

    open_office(server, body)


def test_a_message_that_is_too_large_is_refused(server: RedisServer) -> None:
    async def body(office: Office) -> None:
        await office.put(names.LOCAL, asked(SECOND, dat=b"x" * 2_000))
        assert office.room.begun == []
        assert office.client.llen(names.REFUSED) == 1

    open_office(server, body, body_bytes=1_024)


def test_a_full_backlog_is_told_to_who_asks_and_to_who_runs_it(server: RedisServer, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(office: Office) -> None:
        await office.put(names.LOCAL, asked(SECOND))
        await office.put(names.LOCAL, asked(SECOND, ret="second"))
        assert [answer.err for answer in office.answers("second")] == [FULL_WORDS]

    open_office(server, body, backlog_messages=1)
    assert "queue msgbus.system.backlog full" in capfd.readouterr().err


async def received(office: Office, number: int = 1) -> Message:
    """Have a request of the second twin come in; return it."""
    message = Message(uid=f"{FIRST}.{number}", cmd="x", src=SECOND, dst=(FIRST,), ret=names.REPLY, exp=60, now=int(NOW))
    assert await office.store.accept(SECOND, message, str(number), 60.0) == "accepted"
    (raw,) = await office.store.take(names.REMOTE, 10)
    await office.desk.take(names.REMOTE, raw)
    return message


def answer_of(message: Message, **members: Any) -> dict[str, Any]:
    """Return the answer of an application."""
    value: dict[str, Any] = json.loads(message.with_(src=FIRST, dst=(SECOND,), dat="eA==").encode())
    return {**value, **members}


def test_the_answer_of_an_application_is_sent_at_once_and_no_second(server: RedisServer, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(office: Office) -> None:
        message = await received(office)
        assert office.answers("msgbus.x") == [message]
        await office.put(names.REPLY, answer_of(message))
        (claim,) = office.room.begun
        assert (claim.id, Message.parse(claim.body).dat) == ("r:1002:1001.1", "eA==")
        await office.put(names.REPLY, answer_of(message))
        assert len(office.room.begun) == 1

    open_office(server, body)
    assert "host 1002 has not sent request 1001.1, or has its response" in capfd.readouterr().err


def test_an_application_cannot_answer_for_another_twin(server: RedisServer, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither a request of its own host, nor one of another."""

    async def body(office: Office) -> None:
        message = await received(office)
        await office.put(names.REPLY, answer_of(message, src=1003))
        await office.put(names.LOCAL, asked(SECOND))
        begun = office.room.begun[:]
        forged = json.loads(Message.parse(begun[0].body).with_(src=SECOND, dst=(FIRST,)).encode())
        await office.put(names.REPLY, forged)
        await office.put(names.REPLY, {**forged, "src": 1003})
        assert office.answers("ret") == []
        assert office.room.begun == begun

    open_office(server, body)
    told = capfd.readouterr().err
    assert "response to 1002.1 that host 1002 did not send" in told
    assert "src: a response must name this host" in told


def test_a_command_that_nobody_serves_is_declined_when_its_queue_is_full(server: RedisServer) -> None:
    async def body(office: Office) -> None:
        office.client.rpush("msgbus.x", "another")
        await received(office)
        (claim,) = office.room.begun
        reply = Message.parse(claim.body)
        assert (reply.src, reply.dst) == (FIRST, (SECOND,))
        assert "too many unfetched requests for x" in reply.err

    open_office(server, body, queue_messages=1)


def test_what_a_service_had_when_its_relay_died_is_answered(server: RedisServer) -> None:
    async def body(office: Office) -> None:
        message = Message(uid=f"{FIRST}.1", cmd="x", src=SECOND, dst=(FIRST,), ret=names.REPLY)
        await office.store.accept(SECOND, message, "d", 60.0)
        office.client.delete(names.REMOTE)
        await office.put(names.ABANDONED, message.encode())
        (claim,) = office.room.begun
        assert Message.parse(claim.body).err == ABANDONED_WORDS.format(twin=FIRST, cmd="x")

    open_office(server, body)


def test_what_expires_is_answered_once(server: RedisServer) -> None:
    async def body(office: Office) -> None:
        await office.put(names.LOCAL, asked(SECOND, exp=7))
        assert await office.desk.expire(10) == 0
        office.client.zadd(names.DEADLINES, {"1002.1": 1})
        assert await office.desk.expire(10) == 1
        assert await office.desk.expire(10) == 0
        assert [answer.err for answer in office.answers("ret")] == ["expired: no response within 7 s"]

    open_office(server, body)


def test_an_answer_that_nobody_can_get_is_told(server: RedisServer, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(office: Office) -> None:
        office.client.set("ret", "is no list")
        await office.put(names.LOCAL, asked(SECOND))
        office.client.zadd(names.DEADLINES, {"1002.1": 1})
        assert await office.desk.expire(10) == 1

    open_office(server, body)
    assert "dropped 1 responses for return queue ret" in capfd.readouterr().err
