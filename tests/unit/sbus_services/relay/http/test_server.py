"""The HTTP server's response to each kind of request: one line of JSON with a suitable status, never a traceback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from sbus_programs.config.relay import RelaySettings
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.relay.http.authentication import RejectedRequestError, SenderIdentity, UnverifiedRequest
from sbus_services.relay.http.server import CHANGES, MAX_HOSTS, REMOTE_PATH, REPLY_PATH, SECONDS, HttpServer, SharedNumbers
from sbus_services.relay.log_messages import AUTHENTICATION_FAILED
from sbus_services.relay.message_model import RelayMessage
from sbus_services.relay.redis import names
from sbus_services.relay.redis.client import RedisUnavailableError
from sbus_services.relay.redis.store import Nonce
from tests.support.bus_hosts import FIRST, SECOND

NOW = 1_795_000_000.0

NONCE = Nonce(SECOND, "0" * 32, 10.0)


@dataclass
class FakeAuthentication:
    """Accepts every request as one of the second host."""

    refusal: RejectedRequestError | None = None
    trust: str = "a guard"

    def precheck(self, _unverified_request: UnverifiedRequest) -> None:
        """Raise the rejection, if there is one."""
        if self.refusal is not None:
            raise self.refusal

    def identify(self, _unverified_request: UnverifiedRequest) -> SenderIdentity:
        """Return the second host."""
        return SenderIdentity(SECOND, NONCE)


@dataclass
class FakeStore:
    """A store with a fixed result."""

    says: str | Exception = "accepted"
    accepted: list[tuple[RelayMessage, float]] = field(default_factory=list)
    admitted: list[RelayMessage] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)

    async def accept(self, twin: int, request: RelayMessage, _digest: str, seconds_left: float, nonce: Nonce) -> str:
        """Record a request."""
        assert (twin, nonce) == (SECOND, NONCE)
        self.accepted.append((request, seconds_left))
        return self._said()

    async def admit(self, reply: RelayMessage, nonce: Nonce) -> str:
        """Record a response."""
        assert nonce == NONCE
        self.admitted.append(reply)
        return self._said()

    async def count(self, name: str) -> None:
        """Record the counter."""
        self.counted.append(name)

    def _said(self) -> str:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@dataclass
class Response:
    """The response of the server."""

    status: int
    words: dict[str, str]
    headers: Any


class ServerFixture:
    """A server and a client."""

    def __init__(self, store: FakeStore, authentication: FakeAuthentication, **settings: Any) -> None:
        around: Any = store
        self.store = store
        journal = LimitedLog("sbus-relay")
        self.server = HttpServer(FIRST, RelaySettings(**{"body_timeout": 10.0, **settings}), around, authentication, journal, keys={})
        self.server._clock = lambda: NOW

    def request(self, path: str, body: Any, method: str = "POST", headers: dict[str, str] | None = None) -> Response:
        """Return the response to one request."""

        async def run() -> Response:
            http = self.server.server()
            server = await asyncio.get_running_loop().create_server(http, "127.0.0.1", 0)
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
            try:
                async with aiohttp.ClientSession() as session, session.request(method, url, data=body, headers=headers) as response:
                    return Response(response.status, await response.json(), response.headers)
            finally:
                server.close()
                await http.shutdown(1.0)

        return asyncio.run(run())


def fixture_for(says: str | Exception = "accepted", refusal: RejectedRequestError | None = None, **settings: Any) -> ServerFixture:
    """Return a server whose store *says* this."""
    return ServerFixture(FakeStore(says), FakeAuthentication(refusal), **settings)


def message(**members: Any) -> bytes:
    """Return a message of the second host to the first."""
    made = RelayMessage(uid=f"{FIRST}.1", cmd="x", src=SECOND, dst=(FIRST,), ret="r", exp=60, now=int(NOW) - 10)
    return json.dumps({**json.loads(made.encode()), **members}).encode()


def test_a_request_is_accepted_with_its_return_queue_and_remaining_time() -> None:
    made = fixture_for()
    said = made.request(REMOTE_PATH, message())
    assert (said.status, said.words) == (200, {"status": "accepted"})
    ((request, left),) = made.store.accepted
    assert (request.ret, left) == (names.REPLY, 51.0)


def test_age_is_computed_with_the_senders_clock() -> None:
    made = fixture_for()
    made.request(REMOTE_PATH, message(now=1_000), headers={"Sbus-Time": "1030"})
    assert [left for _, left in made.store.accepted] == [31.0]


def test_a_response_is_accepted_unchanged() -> None:
    made = fixture_for()
    assert made.request(REPLY_PATH, message(uid="1002.1")).status == 200
    assert [reply.ret for reply in made.store.admitted] == ["r"]


@pytest.mark.parametrize("says", ["accepted", "repeated"])
def test_a_copy_has_arrived_too(says: str) -> None:
    assert fixture_for(says).request(REMOTE_PATH, message()).words == {"status": says}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/", b"{}", 404, "not found; the paths are"),
        (REMOTE_PATH, b"{", 400, "not valid JSON"),
        (REMOTE_PATH, b"[]", 400, "not an object"),
        (REMOTE_PATH, message(dat="?"), 400, "dat: not valid base64"),
        (REMOTE_PATH, message(uid=""), 400, "uid: missing or empty"),
        (REMOTE_PATH, message(cmd=""), 400, "cmd: missing or empty"),
        (REMOTE_PATH, message(exp=100_000), 400, "exceeds the maximum"),
        (REMOTE_PATH, message(src=1003), 403, "host 1002 sent a message with src 1003"),
        (REPLY_PATH, message(src=1003), 403, "host 1002 sent a message with src 1003"),
        (REMOTE_PATH, message(dst=[1003]), 421, "this is host 1001"),
        (REMOTE_PATH, message(dst=[FIRST, 1003]), 421, "this is host 1001"),
        (REMOTE_PATH, message(now=int(NOW) - 100), 410, "expired 39 s ago"),
    ],
)
def test_permanent_refusals(path: str, body: bytes, status: int, words: str) -> None:
    made = fixture_for()
    said = made.request(path, body)
    assert said.status == status
    assert words in said.words["error"]
    assert "Retry-After" not in said.headers
    assert (made.store.accepted, made.store.admitted) == ([], [])
    assert len(made.store.counted) == 1


def test_another_method_is_refused() -> None:
    assert fixture_for().request(REMOTE_PATH, None, "PUT").status == 405


@pytest.mark.parametrize(
    ("path", "says", "status", "words"),
    [
        (REMOTE_PATH, "queue", 503, "too many unfetched messages"),
        (REMOTE_PATH, "open", 503, "your requests are waiting for responses here"),
        (REMOTE_PATH, "memory", 503, "your requests are remembered here"),
        (REPLY_PATH, "queue", 503, "too many unfetched messages"),
        (REMOTE_PATH, "replayed", 401, "was sent before"),
        (REPLY_PATH, "replayed", 401, "was sent before"),
        (REPLY_PATH, "forged", 403, "which it did not receive"),
        (REPLY_PATH, "unasked", 404, "no request 1001.1 is waiting"),
    ],
)
def test_messages_rejected_by_the_store(path: str, says: str, status: int, words: str) -> None:
    said = fixture_for(says).request(path, message())
    assert said.status == status
    assert words in said.words["error"]
    assert ("Retry-After" in said.headers) is (status == 503)


def test_an_unavailable_redis_does_not_stop_the_server() -> None:
    said = fixture_for(RedisUnavailableError("where")).request(REMOTE_PATH, message())
    assert (said.status, said.words) == (503, {"error": "Redis is unavailable on this host; try again later"})
    assert said.headers["Retry-After"] == "5"


def test_internal_error_is_logged_and_not_sent(capfd: pytest.CaptureFixture[str]) -> None:
    said = fixture_for(ZeroDivisionError("secret")).request(REMOTE_PATH, message())
    assert said.status == 500
    assert "secret" not in str(said.words)
    assert "in the HTTP server: ZeroDivisionError: secret" in capfd.readouterr().err


def test_unauthenticated_sender_is_rejected_before_the_body(capfd: pytest.CaptureFixture[str]) -> None:
    """The body of this request never ends."""

    async def endless() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    made = fixture_for(refusal=RejectedRequestError(401, "is not signed", AUTHENTICATION_FAILED, "peers-refused"))
    assert made.request(REMOTE_PATH, endless()).status == 401
    assert made.store.counted == ["peers-refused"]
    assert "rejected 1 unauthenticated requests from 127.0.0.1: is not signed" in capfd.readouterr().err


def test_a_body_that_is_too_large_is_refused_by_its_length_and_without_one() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 1_024

    for body in (b"x" * 2_000, pieces()):
        made = fixture_for(body_bytes=1_024)
        assert made.request(REMOTE_PATH, body).status == 413
        assert made.store.counted == ["bodies-too-large"]


def test_bodies_of_unverified_senders_have_a_total_limit() -> None:
    """Two endless bodies use up the room of their address; a third is accepted, and the oldest one is evicted."""

    async def half() -> AsyncIterator[bytes]:
        yield b"x" * 1_000
        await asyncio.Event().wait()

    made = fixture_for(body_bytes=2_000, pending_bytes=2_000)

    async def run() -> list[int]:
        http = made.server.server()
        server = await asyncio.get_running_loop().create_server(http, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{REMOTE_PATH}"
        statuses = []
        async with aiohttp.ClientSession() as session:
            slow = [asyncio.ensure_future(session.post(url, data=half())) for _ in range(2)]
            while sum(made.server._unverified_bytes._of.values()) < 2_000:
                await asyncio.sleep(0)
            async with session.post(url, data=message()) as response:
                statuses.append(response.status)
            (ended,), others = await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
            statuses.append(ended.result().status)
            for each in others:
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            while sum(made.server._unverified_bytes._of.values()):
                await asyncio.sleep(0)
        server.close()
        await http.shutdown(1.0)
        return statuses

    assert asyncio.run(run()) == [200, 503]
    assert made.store.counted[0] == "bodies-evicted"


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    made = fixture_for(body_timeout=0.1)
    assert made.request(REMOTE_PATH, slow()).status == 408
    assert made.store.counted == ["bodies-too-slow"]


def test_two_addresses_in_turn_are_noticed() -> None:
    made = SharedNumbers()
    found = [made.other_address(7, address, second) for second, address in enumerate("abbaabba" * 3)]
    assert {each for each in found if each is not None} <= {"a", "b"}
    assert sum(each is not None for each in found) == 3


def test_a_host_that_moves_or_alternates_slowly_is_not() -> None:
    made = SharedNumbers()
    moves = [made.other_address(7, address, 1.0) for address in "aaabbbaaacde"]
    slow = [made.other_address(8, address, number * SECONDS) for number, address in enumerate("ab" * CHANGES * 2)]
    apart = [made.other_address(number % 2, "ab"[number % 2], number) for number in range(20)]
    assert {*moves, *slow, *apart} == {None}


def test_the_number_of_hosts_is_bounded() -> None:
    made = SharedNumbers()
    for twin in range(MAX_HOSTS + 10):
        made.other_address(twin, "a", 0.0)
    assert len(made._seen) == MAX_HOSTS
