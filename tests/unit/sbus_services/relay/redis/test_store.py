"""Every state transition of a message in a real Redis: it happens once, for the holder of the message, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from sbus_services.relay.message_model import RelayMessage
from sbus_services.relay.redis import names as queues
from sbus_services.relay.redis.store import MessageStore, Nonce
from tests.support.bus_hosts import FIRST, SECOND
from tests.support.message_stores import opened, outgoing, reply_to, run_with, taken
from tests.support.relays import RedisServer

pytestmark = pytest.mark.slow


def left(client: Any) -> set[str]:
    """Return the keys of a message in progress."""
    names = {key.decode().removeprefix("msgbus.system.").removeprefix("relay.").partition(":")[0] for key in client.keys("msgbus.*")}
    return names - {"counters", "relays", "lease", "peers", "peer", "done", "seen", "nonce", "counter"}


def test_unfinished_messages_of_a_relay_are_returned_again(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        client.rpush(queues.LOCAL, "a", "b", "c")
        assert await store.take(queues.LOCAL, 2) == [b"a", b"b"]
        assert await store.take(queues.LOCAL, 2) == [b"a", b"b"]
        client.delete(queues.taken(store.relay, queues.LOCAL))
        assert await store.take(queues.LOCAL, 2) == [b"c"]

    run_with(server, body)


def test_nothing_to_take_is_waited_for(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        assert await store.take(queues.LOCAL, 2) == []

    run_with(server, body)


def test_messages_of_a_dead_relay_are_requeued_in_order(server: RedisServer) -> None:
    """Also the messages of a relay that died before it had a lease."""

    async def body(store: MessageStore, client: Any) -> None:
        client.rpush(queues.REMOTE, "a", "b", "c")
        async with opened(server) as dead:
            await dead.take(queues.REMOTE, 2)
        assert await store.live() == 2
        assert client.lrange(queues.REMOTE, 0, -1) == [b"a", b"b", b"c"]
        assert await store.live() == 0

    run_with(server, body)


def test_messages_of_a_running_relay_are_not_requeued(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        client.rpush(queues.REMOTE, "a")
        async with opened(server) as other:
            await other.live()
            await other.take(queues.REMOTE, 1)
            assert await store.live() == 0
            assert await other.take(queues.REMOTE, 1) == [b"a"]

    run_with(server, body)


def test_request_is_held_by_the_relay_that_sends_it_at_once(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        raw = await taken(store, client, queues.LOCAL, b"raw")
        made = outgoing(hold_seconds=60.0)
        ((said, claim),) = await store.dispatch(raw, [made])
        assert said == "accepted"
        assert claim is not None
        assert (claim.id, claim.attempt, claim.tries, claim.twin, claim.is_request) == (f"q:{made.message.uid}", 1, 1, SECOND, True)
        assert RelayMessage.parse(claim.body) == made.message
        async with opened(server) as other:
            assert (await other.claim(SECOND, 10, 60.0))[1] == []
            assert await other.twins() == [SECOND]
        assert await store.sent(claim) == "sent"
        assert await store.twins() == []
        assert left(client) == {"backlog", "deadlines"}

    run_with(server, body)


def test_one_that_waits_is_claimed_once(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        raw = await taken(store, client, queues.LOCAL, b"raw")
        assert await store.dispatch(raw, [outgoing(1), outgoing(2)]) == [("accepted", None)] * 2
        _, found = await store.claim(SECOND, 10, 60.0)
        assert [claim.id for claim in found] == ["q:1002.1", "q:1002.2"]
        assert (await store.claim(SECOND, 10, 60.0))[1] == []

    run_with(server, body)


def test_relay_that_lost_a_request_changes_nothing(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        assert await store.dispatch(b"raw", [outgoing()]) == []
        assert left(client) == set()

    run_with(server, body)


def test_a_try_that_is_abandoned_is_another_relays_and_the_first_has_lost_it(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        raw = await taken(store, client, queues.LOCAL, b"raw")
        ((_, first),) = await store.dispatch(raw, [outgoing(hold_seconds=60.0)])
        assert first is not None
        client.zadd(queues.sending(SECOND), {first.id: 1})  # its claim has expired
        _, (second,) = await store.claim(SECOND, 10, 60.0)
        assert (second.id, second.attempt) == (first.id, 2)
        assert await store.sent(first) == "lost"
        assert await store.postpone(first, "why") == "lost"
        assert await store.answer(outgoing().message, outgoing().full, "failed", token=first.token) == "lost"
        assert await store.sent(second) == "sent"
        assert client.hget(queues.COUNTERS, "tries-abandoned") == b"1"

    run_with(server, body, retry_interval=0.01)


def test_tries_are_counted_down(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        raw = await taken(store, client, queues.LOCAL, b"raw")
        ((_, claim),) = await store.dispatch(raw, [outgoing(hold_seconds=60.0, tries=1)])
        assert claim is not None
        assert await store.postpone(claim, "why") == "postponed"
        due, none = await store.claim(SECOND, 10, 60.0)
        assert none == []
        assert 0 < due <= 5
        assert await store.hasten(10) == 1  # that retry is not counted
        _, (again,) = await store.claim(SECOND, 10, 60.0)
        assert (again.attempt, again.tries) == (2, 1)
        assert await store.postpone(again, "why") == "postponed"
        client.zadd(queues.waiting(SECOND), {again.id: 0})
        _, (last,) = await store.claim(SECOND, 10, 60.0)
        assert (last.attempt, last.tries) == (3, 0)
        assert await store.postpone(last, "why") == "exhausted"

    run_with(server, body)


def test_a_request_has_one_answer(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        raw = await taken(store, client, queues.LOCAL, b"raw")
        made = outgoing(hold_seconds=60.0)
        await store.dispatch(raw, [made])
        assert await store.waiting_request(made.message.uid) == made.message
        assert await store.answer(made.message, reply_to(made.message, dat="eA=="), "answered") == "answered"
        assert await store.answer(made.message, made.full, "expired") == "late"
        assert await store.waiting_request(made.message.uid) is None
        (answer,) = client.lrange("ret-1", 0, -1)
        assert RelayMessage.parse(answer).dat == "eA=="
        assert left(client) == set()

    run_with(server, body)


def test_a_full_backlog_is_answered(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        raw = await taken(store, client, queues.LOCAL, b"raw")
        said = await store.dispatch(raw, [outgoing(1, hold_seconds=60.0), outgoing(2, hold_seconds=60.0)])
        assert [(word, claim is None) for word, claim in said] == [("accepted", False), ("answered", True)]
        assert RelayMessage.parse(client.lpop("ret-2")).err == "no room"

    run_with(server, body, backlog_messages=1)


@pytest.mark.parametrize("ret", ["msgbus.system.local", "msgbus.system.relay.answers:zz", "msgbus.x"])
def test_no_answer_is_put_into_a_queue_of_the_bus(server: RedisServer, ret: str) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        raw = await taken(store, client, queues.LOCAL, b"raw")
        await store.dispatch(raw, [outgoing()])
        assert await store.answer(outgoing().message.with_(ret=ret), outgoing().full, "failed") == "undeliverable"
        assert client.exists(ret) == 0

    run_with(server, body)


def request_of_second(number: int = 1) -> RelayMessage:
    """Return a request from the second host to this one."""
    return RelayMessage(uid=f"{FIRST}.{number}", cmd="x", src=SECOND, dst=(FIRST,), ret=queues.REPLY)


def test_a_request_of_another_host_is_accepted_once(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        asked = request_of_second()
        assert await store.accept(SECOND, asked, "d", 60.0) == "accepted"
        assert await store.accept(SECOND, asked, "d", 60.0) == "repeated"
        assert client.lrange(queues.REMOTE, 0, -1) == [asked.encode()]

    run_with(server, body)


def test_a_signature_is_valid_once(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        once = Nonce(SECOND, "0" * 32, 10.0)
        assert await store.accept(SECOND, request_of_second(1), "d", 60.0, once) == "accepted"
        assert await store.accept(SECOND, request_of_second(2), "e", 60.0, once) == "replayed"
        assert await store.admit(reply_to(outgoing().message), once) == "replayed"
        assert client.llen(queues.REMOTE) == 1
        assert 0 < client.ttl(queues.nonce(SECOND, "0" * 32)) <= 10

    run_with(server, body)


@pytest.mark.parametrize(("bound", "says"), [("queue_messages", "queue"), ("peer_requests", "open"), ("peer_memory", "memory")])
def test_one_host_cannot_fill_another(server: RedisServer, bound: str, says: str) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        assert await store.accept(SECOND, request_of_second(1), "d", 60.0) == "accepted"
        assert await store.accept(SECOND, request_of_second(2), "e", 60.0) == says
        assert await store.accept(SECOND, request_of_second(1), "d", 60.0) == "repeated"
        if says != "queue":
            assert await store.accept(1003, request_of_second(1).with_(src=1003), "d", 60.0) == "accepted"

    run_with(server, body, **{bound: 1})


def test_response_is_accepted_only_from_the_called_host(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        raw = await taken(store, client, queues.LOCAL, b"raw")
        await store.dispatch(raw, [outgoing()])
        answer = reply_to(outgoing().message)
        assert await store.admit(answer.with_(src=1003)) == "forged"
        assert await store.admit(answer.with_(uid="1002.9")) == "unasked"
        assert await store.admit(answer) == "accepted"
        assert client.lpop(queues.REPLY) == answer.encode()
        mine = await taken(store, client, queues.REPLY, answer.with_(dat="eA==").encode())
        assert await store.answer(outgoing().message, answer, "answered", raw=mine, queue=queues.REPLY, vetted=True) == "forged"

    run_with(server, body, queue_messages=2)


def test_request_goes_to_the_queue_of_its_command_if_it_is_open(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        asked = request_of_second()
        await store.accept(SECOND, asked, "d", 60.0)
        (raw,) = await store.take(queues.REMOTE, 10)
        assert await store.deliver(raw, asked, queues.REMOTE) == "delivered"
        assert await store.deliver(raw, asked, queues.REMOTE) == "lost"
        assert client.lrange("msgbus.x", 0, -1) == [raw]
        late = await taken(store, client, queues.REMOTE, request_of_second(2).encode())
        assert await store.deliver(late, request_of_second(2), queues.REMOTE) == "late"

    run_with(server, body)


def test_response_is_sent_once_and_to_the_calling_host(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        asked = request_of_second()
        await store.accept(SECOND, asked, "d", 60.0)
        answer = reply_to(asked)
        raw = await taken(store, client, queues.REPLY, answer.encode())
        said, claim = await store.respond(raw, answer, queues.REPLY, 60.0, 60.0)
        assert said == "ready"
        assert claim is not None
        assert (claim.id, claim.is_request, claim.body) == (f"r:{SECOND}:{asked.uid}", False, answer.encode())
        assert await store.respond(raw, answer, queues.REPLY, 60.0) == ("lost", None)
        again = await taken(store, client, queues.REPLY, answer.encode())
        assert await store.respond(again, answer, queues.REPLY, 60.0) == ("unasked", None)
        assert await store.drop(claim, "answers-refused") == "dropped"
        assert await store.twins() == []

    run_with(server, body)


async def asker(store: MessageStore, client: Any, number: int = 1, cmd: str = "x") -> str:
    """Return the host that receives the error of a request to the first host that does not name its sender."""
    error = request_of_second(number).with_(src=FIRST, dst=(FIRST,), cmd=cmd, err="wrong")
    raw = await taken(store, client, queues.REPLY, error.encode())
    said = await store.asker(raw, error, queues.REPLY)
    assert client.llen(queues.taken(store.relay, queues.REPLY)) == (0 if said == "ambiguous" else 1)
    client.delete(queues.taken(store.relay, queues.REPLY))
    return said


def test_error_goes_to_the_only_host_with_that_command(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        assert await asker(store, client) == "none"
        await store.accept(SECOND, request_of_second(), "d", 60.0)
        assert await asker(store, client, cmd="y") == "ambiguous"
        assert await asker(store, client) == str(SECOND)
        await store.accept(1003, request_of_second().with_(src=1003), "d", 60.0)
        assert await asker(store, client) == "ambiguous"
        answer = reply_to(request_of_second())
        await store.respond(await taken(store, client, queues.REPLY, answer.encode()), answer, queues.REPLY, 60.0)
        assert await asker(store, client) == "1003"

    run_with(server, body)


def test_uid_that_a_host_uses_twice_is_ambiguous(server: RedisServer) -> None:
    """Otherwise the response to the first would hide that the other has none yet."""

    async def body(store: MessageStore, client: Any) -> None:
        await store.accept(SECOND, request_of_second().with_(cmd="y"), "d", 60.0)
        await store.accept(SECOND, request_of_second(), "e", 60.0)
        answer = reply_to(request_of_second().with_(cmd="y"))
        await store.respond(await taken(store, client, queues.REPLY, answer.encode()), answer, queues.REPLY, 60.0)
        await store.dispatch(await taken(store, client, queues.LOCAL, b"raw"), [outgoing(twin=FIRST, action="here")])
        assert await asker(store, client) == "ambiguous"

    run_with(server, body)


def test_where_askers_are_forgotten_early_no_error_is_redirected(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        await store.accept(1003, request_of_second(2).with_(src=1003), "d", 60.0)
        await store.accept(SECOND, request_of_second(1), "d", 0.0)
        client.delete(f"msgbus.system.relay.seen:{SECOND}")
        assert await asker(store, client, 2) == "1003"
        await store.accept(SECOND, request_of_second(3), "d", 60.0)
        assert await asker(store, client, 2) == "ambiguous"
        assert client.hget(queues.COUNTERS, "askers-forgotten") == b"1"
        client.delete("msgbus.system.relay.askers-forgotten")  # it has expired
        assert await asker(store, client, 2) == "1003"

    run_with(server, body, peer_memory=1)


def test_askers_leave_nothing_behind(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        made = outgoing(twin=FIRST, action="here")
        await store.dispatch(await taken(store, client, queues.LOCAL, b"raw"), [made])
        assert await asker(store, client) == str(FIRST)
        assert await store.answer(made.message, reply_to(made.message), "answered") == "answered"
        assert left(client) == {"remote"}

    run_with(server, body)


def test_a_malformed_message_is_kept_for_inspection(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        raw = await taken(store, client, queues.LOCAL, b"nonsense")
        assert await store.discard(raw, queues.LOCAL) == "kept"
        assert client.lrange(queues.REFUSED, 0, -1) == [b"nonsense"]
        raw = await taken(store, client, queues.LOCAL, b"more")
        assert await store.discard(raw, queues.LOCAL, [("ret-7", outgoing(7).full)]) == "answered"
        assert client.llen("ret-7") == 1

    run_with(server, body)


def test_expired_messages_are_found(server: RedisServer) -> None:
    async def body(store: MessageStore, client: Any) -> None:
        raw = await taken(store, client, queues.LOCAL, b"raw")
        await store.dispatch(raw, [outgoing(1), outgoing(2)])
        assert await store.expired(10) == []
        client.zadd(queues.DEADLINES, {"1002.2": 1})
        assert await store.expired(10) == [outgoing(2).message]

    run_with(server, body)
