"""Calls of local users to remote hosts: which are sent, in which form, and what happens to their responses."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from sbus.items import Message as BusMessage
from sbus.protocol.credentials import Peer
from sbus.protocol.envelope import Envelope, call_digest, parse_envelope
from sbus.protocol.packets import Publish, parse_packet
from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbus_services.relay.bus.client import ConcurrencyLimit
from sbus_services.relay.bus.outgoing_calls import OutgoingCalls
from sbus_services.relay.message_model import InvalidMessageError, RelayMessage
from sbus_services.relay.queue_handler import QueueHandler
from sbus_services.relay.redis.client import RedisUnavailableError

NOW = 1_000_000.0
RET = "msgbus.system.relay.answers:ab"
KEY = b"relay/1002/echo"
CHARGED = ChargedUsers(SubordinateIds([SubordinateRange(100_000, 10, 1000)]))


class FakeHandler:
    """A queue handler that records sent requests, or fails with *error*."""

    def __init__(self, error: Exception | None = None) -> None:
        self.sent: list[tuple[str, RelayMessage]] = []
        self.error = error
        self.came = asyncio.Event()

    async def next_uid(self, twin: int) -> str:
        return f"{twin}.{len(self.sent) + 1}"

    async def call(self, request: RelayMessage, uid: str) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append((uid, request))
        self.came.set()


def caller(uid: int = 1000, connection: int = 7) -> Peer:
    return Peer(connection, uid, 100, 42, b"!/cred/100/%d/42" % uid)


def asked(uid: str = "u", *, key: bytes = KEY, sender: Peer | None = None, **more: object) -> BusMessage:
    sender = sender or caller()
    ret = f"!/conn/{sender.connection}/ret/{uid}"
    envelope = Envelope("echo", uid, b"\0x", ret, 30, int(NOW), destinations=(1002,), tries=3)
    return BusMessage(key, replace(envelope, **cast(dict[str, Any], more)).encode(), sender)


def made(handler: FakeHandler, calls: int = 10, size: int = 1_000) -> OutgoingCalls:
    return OutgoingCalls(cast(QueueHandler, handler), RET, ConcurrencyLimit(calls, size), CHARGED.of)


def error_of(packet: bytes) -> str:
    parsed = parse_packet(packet)
    assert isinstance(parsed, Publish)
    return parse_envelope(parsed.payload).error


async def begin(calls: OutgoingCalls, message: BusMessage) -> asyncio.Future[bytes]:
    """Send *message*; return the future of the response packet."""
    assert calls.receive(message, NOW) == b""
    task, packets = calls.next(NOW)
    assert task is not None
    assert packets == []

    async def run() -> bytes:
        try:
            result = await cast(Awaitable[bytes], task.handler(task.request))
        except Exception as error:
            return calls.failed(task, error)
        return calls.answered(task, result)

    return asyncio.ensure_future(run())


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(300):
            await main()

    asyncio.run(bounded())


def test_a_call_becomes_a_request_and_its_answer_the_calls() -> None:
    async def main() -> None:
        handler = FakeHandler()
        calls = made(handler)
        running = await begin(calls, asked())
        await handler.came.wait()
        ((uid, request),) = handler.sent
        assert (request.cmd, request.dst, request.ret, request.exp, request.try_, request.now) == ("echo", (1002,), RET, 30, 3, int(NOW))
        assert base64.b64decode(request.dat) == b"\0x"
        assert calls.digest_of(uid) == call_digest(7, b"!/conn/7/ret/u", "u")
        reply = RelayMessage(uid=uid, src=1002, dst=(1001,), dat=base64.b64encode(b"y").decode())
        assert calls.deliver(reply)
        assert not calls.deliver(reply)
        parsed = parse_packet(await running)
        assert isinstance(parsed, Publish)
        answer = parse_envelope(parsed.payload)
        assert (parsed.key, answer.uid, answer.data, answer.source, answer.error) == (b"!/conn/7/ret/u", "u", b"y", 1002, "")
        assert calls.digest_of(uid) is None

    run(main)


def test_a_trace_context_goes_to_the_remote_host() -> None:
    async def main() -> None:
        context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        handler = FakeHandler()
        running = await begin(made(handler), asked(context=context))
        await handler.came.wait()
        assert handler.sent[0][1].ctx == context
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run(main)


def test_response_without_a_waiting_call_is_not_delivered() -> None:
    async def main() -> None:
        assert not made(FakeHandler()).deliver(RelayMessage(uid="1002.5"))

    run(main)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (InvalidMessageError("cmd: reserved for the relay itself"), "cmd: reserved for the relay itself"),
        (RedisUnavailableError("Redis: gone"), "relay unavailable: Redis: gone; the call may have been sent"),
    ],
)
def test_call_that_cannot_be_sent_gets_an_error(error: Exception, says: str) -> None:
    async def main() -> None:
        calls = made(FakeHandler(error), calls=1)
        for uid in ("u", "v"):  # and does not count any longer
            assert error_of(await (await begin(calls, asked(uid)))) == says

    run(main)


def test_the_error_of_the_other_host_is_the_calls() -> None:
    async def main() -> None:
        handler = FakeHandler()
        calls = made(handler)
        running = await begin(calls, asked())
        await handler.came.wait()
        calls.deliver(RelayMessage(uid="1002.1", src=1002, err="destination not found"))
        assert error_of(await running) == "destination not found"
        assert calls.counts["failed"] == 1

    run(main)


def test_the_key_says_which_host() -> None:
    """Rules apply to keys: a user who may call 1003 and not 1002 must not call 1002 by the envelope."""
    calls = made(FakeHandler())
    for twins in ((), (1002,), (1003, 1002)):
        packet = calls.receive(asked(str(twins), key=b"relay/1003/echo", destinations=twins), NOW)
        assert error_of(packet) == "dst: must be exactly the host that the key names, 1003"
    assert calls.counts["malformed"] == 3
    assert calls.next(NOW) == (None, [])


@pytest.mark.parametrize(
    "key", [b"!/conn/3/relay/1002/echo", b"relay/attempt", b"relay/x/echo", b"relay/1002", b"rpc/echo", b"relayed/echo"]
)
def test_other_keys_are_not_served(key: bytes) -> None:
    calls = made(FakeHandler())
    assert calls.receive(asked(key=key), NOW) == b""
    assert (calls.counts["unknown"], calls.next(NOW)) == (1, (None, []))


def test_it_subscribes_to_all_hosts_and_at_its_address() -> None:
    assert made(FakeHandler()).patterns(b"!/conn/3/") == [b"relay/*/", b"!/conn/3/relay/*/"]


def test_user_at_the_limit_gets_an_error_and_others_are_served() -> None:
    calls = made(FakeHandler(), calls=2)
    assert [calls.receive(asked(uid), NOW) for uid in "ab"] == [b"", b""]
    assert (
        error_of(calls.receive(asked("c"), NOW))
        == "busy: 2 calls are already in progress for user 1000; try again when some have completed"
    )
    assert calls.receive(asked("d", sender=caller(1001, 8)), NOW) == b""
    assert calls.counts["busy"] == 1


def test_all_ids_of_a_user_have_the_calls_of_one_user() -> None:
    async def main() -> None:
        charged = ChargedUsers(CHARGED.ids)
        handler = FakeHandler()
        calls = OutgoingCalls(cast(QueueHandler, handler), RET, ConcurrencyLimit(2, 1_000), charged.of)
        running = await begin(calls, asked("a", sender=caller(100_001, 8)))
        await handler.came.wait()
        assert calls.receive(asked("b"), NOW) == b""
        for uid in (1000, 100_002):
            assert "already in progress for user 1000;" in error_of(calls.receive(asked(f"c{uid}", sender=caller(uid, 9)), NOW))
        charged.ids = SubordinateIds()  # who was charged gets the room back, whatever the file says then
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert calls.receive(asked("d"), NOW) == b""
        assert "busy" in error_of(calls.receive(asked("e"), NOW))

    run(main)


def test_too_many_bytes_are_too_many() -> None:
    calls = made(FakeHandler(), size=100)
    assert calls.receive(asked("a", data=bytes(60)), NOW) == b""
    assert "60 bytes and this one 41; the limit is 100 bytes" in error_of(calls.receive(asked("b", data=bytes(41)), NOW))
    assert calls.receive(asked("c", data=bytes(40)), NOW) == b""


def test_rejected_and_repeated_messages_use_no_space() -> None:
    calls = made(FakeHandler(), calls=2)
    assert calls.receive(asked("a"), NOW) == b""
    for _ in range(5):
        assert calls.receive(asked("a"), NOW) == b""
    assert error_of(calls.receive(asked("late", sent_at=int(NOW) - 100), NOW)) == "the request expired before it arrived, and was not run"
    assert calls.receive(asked("b"), NOW) == b""
    assert (calls.counts["duplicate"], calls.counts["expired"]) == (5, 1)


def test_one_that_expires_while_it_waits_gives_its_room_back() -> None:
    """The queue handler rejects it: every accepted request is run."""

    async def main() -> None:
        calls = made(FakeHandler(InvalidMessageError("expired: the request is older than its exp of 30 s")), calls=1)
        assert calls.receive(asked("a"), NOW) == b""
        task, _ = calls.next(NOW + 100)
        assert task is not None
        with pytest.raises(RuntimeError, match="expired"):
            await cast(Awaitable[bytes], task.handler(task.request))
        assert calls.receive(asked("b"), NOW) == b""

    run(main)
