"""What the door says to each kind of request: in one line of JSON, with the status that tells whether to come again, never a traceback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from sbusd.config.relay import RelaySettings
from sbusd.relay.http.authentication import Caller, RefusedError, Speaker
from sbusd.relay.http.server import REMOTE_PATH, REPLY_PATH, Door
from sbusd.relay.log_messages import STRANGER, RelayLog
from sbusd.relay.message_model import Message
from sbusd.relay.redis import names
from sbusd.relay.redis.link import RedisAwayError
from sbusd.relay.redis.store import Once
from tests.support.towns import FIRST, SECOND

NOW = 1_795_000_000.0

ONCE = Once(SECOND, "0" * 32, 10.0)


@dataclass
class Guard:
    """A gate that lets in the second twin."""

    refusal: RefusedError | None = None
    trust: str = "a guard"

    def precheck(self, _caller: Caller) -> None:
        """Refuse, if it is to."""
        if self.refusal is not None:
            raise self.refusal

    def identify(self, _caller: Caller) -> Speaker:
        """Let in."""
        return Speaker(SECOND, ONCE)


@dataclass
class Shelf:
    """A store that says what it is told to."""

    says: str | Exception = "accepted"
    accepted: list[tuple[Message, float]] = field(default_factory=list)
    admitted: list[Message] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)

    async def accept(self, twin: int, request: Message, _digest: str, seconds_left: float, once: Once) -> str:
        """Take a request."""
        assert (twin, once) == (SECOND, ONCE)
        self.accepted.append((request, seconds_left))
        return self._said()

    async def admit(self, reply: Message, once: Once) -> str:
        """Take an answer."""
        assert once == ONCE
        self.admitted.append(reply)
        return self._said()

    async def count(self, name: str) -> None:
        """Count."""
        self.counted.append(name)

    def _said(self) -> str:
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@dataclass
class Said:
    """What the door answered."""

    status: int
    words: dict[str, str]
    headers: Any


class Visit:
    """A door, and who knocks at it."""

    def __init__(self, shelf: Shelf, guard: Guard, **settings: Any) -> None:
        around: Any = shelf
        self.shelf = shelf
        self.door = Door(FIRST, RelaySettings(**{"body_timeout": 10.0, **settings}), around, guard, RelayLog(), keys={})
        self.door._clock = lambda: NOW

    def knock(self, path: str, body: Any, method: str = "POST", headers: dict[str, str] | None = None) -> Said:
        """Return what is said to one request."""

        async def run() -> Said:
            http = self.door.server()
            server = await asyncio.get_running_loop().create_server(http, "127.0.0.1", 0)
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
            try:
                async with aiohttp.ClientSession() as session, session.request(method, url, data=body, headers=headers) as response:
                    return Said(response.status, await response.json(), response.headers)
            finally:
                server.close()
                await http.shutdown(1.0)

        return asyncio.run(run())


def visit(says: str | Exception = "accepted", refusal: RefusedError | None = None, **settings: Any) -> Visit:
    """Return a visit to a door whose store *says* this."""
    return Visit(Shelf(says), Guard(refusal), **settings)


def message(**members: Any) -> bytes:
    """Return a message of the second twin to the first."""
    made = Message(uid=f"{FIRST}.1", cmd="x", src=SECOND, dst=(FIRST,), ret="r", exp=60, now=int(NOW) - 10)
    return json.dumps({**json.loads(made.encode()), **members}).encode()


def test_a_request_is_taken_with_the_queue_of_answers_and_the_time_that_is_left() -> None:
    made = visit()
    said = made.knock(REMOTE_PATH, message())
    assert (said.status, said.words) == (200, {"status": "accepted"})
    ((request, left),) = made.shelf.accepted
    assert (request.ret, left) == (names.REPLY, 51.0)


def test_ages_are_told_by_the_senders_clock() -> None:
    made = visit()
    made.knock(REMOTE_PATH, message(now=1_000), headers={"Sbus-Time": "1030"})
    assert [left for _, left in made.shelf.accepted] == [31.0]


def test_an_answer_is_taken_as_it_is() -> None:
    made = visit()
    assert made.knock(REPLY_PATH, message(uid="1002.1")).status == 200
    assert [reply.ret for reply in made.shelf.admitted] == ["r"]


@pytest.mark.parametrize("says", ["accepted", "repeated"])
def test_a_copy_has_arrived_too(says: str) -> None:
    assert visit(says).knock(REMOTE_PATH, message()).words == {"status": says}


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
def test_what_is_refused_for_good(path: str, body: bytes, status: int, words: str) -> None:
    made = visit()
    said = made.knock(path, body)
    assert said.status == status
    assert words in said.words["error"]
    assert "Retry-After" not in said.headers
    assert (made.shelf.accepted, made.shelf.admitted) == ([], [])
    assert len(made.shelf.counted) == 1


def test_another_method_is_refused() -> None:
    assert visit().knock(REMOTE_PATH, None, "PUT").status == 405


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
def test_what_the_store_does_not_take(path: str, says: str, status: int, words: str) -> None:
    said = visit(says).knock(path, message())
    assert said.status == status
    assert words in said.words["error"]
    assert ("Retry-After" in said.headers) is (status == 503)


def test_a_redis_that_is_away_is_no_end() -> None:
    said = visit(RedisAwayError("where")).knock(REMOTE_PATH, message())
    assert (said.status, said.words) == (503, {"error": "Redis is unavailable on this host; try again later"})
    assert said.headers["Retry-After"] == "5"


def test_a_mistake_is_the_journals_and_not_the_peers(capfd: pytest.CaptureFixture[str]) -> None:
    said = visit(ZeroDivisionError("secret")).knock(REMOTE_PATH, message())
    assert said.status == 500
    assert "secret" not in str(said.words)
    assert "in the HTTP server: ZeroDivisionError: secret" in capfd.readouterr().err


def test_who_is_nobody_is_refused_before_the_body_is_read(capfd: pytest.CaptureFixture[str]) -> None:
    """It is not even waited for: this one never ends."""

    async def endless() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    made = visit(refusal=RefusedError(401, "is not signed", STRANGER, "peers-refused"))
    assert made.knock(REMOTE_PATH, endless()).status == 401
    assert made.shelf.counted == ["peers-refused"]
    assert "rejected 1 unauthenticated requests from 127.0.0.1: is not signed" in capfd.readouterr().err


def test_a_body_that_is_too_large_is_refused_by_its_length_and_without_one() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 1_024

    for body in (b"x" * 2_000, pieces()):
        made = visit(body_bytes=1_024)
        assert made.knock(REMOTE_PATH, body).status == 413
        assert made.shelf.counted == ["bodies-too-large"]


def test_bodies_of_senders_who_are_not_verified_are_bounded_in_sum() -> None:
    """Two that never end have all the bytes of their address; the next is taken, and the older one of them is to come again."""

    async def half() -> AsyncIterator[bytes]:
        yield b"x" * 1_000
        await asyncio.Event().wait()

    made = visit(body_bytes=2_000, pending_bytes=2_000)

    async def run() -> list[int]:
        http = made.door.server()
        server = await asyncio.get_running_loop().create_server(http, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{REMOTE_PATH}"
        statuses = []
        async with aiohttp.ClientSession() as session:
            slow = [asyncio.ensure_future(session.post(url, data=half())) for _ in range(2)]
            while sum(made.door._pending._of.values()) < 2_000:
                await asyncio.sleep(0)
            async with session.post(url, data=message()) as response:
                statuses.append(response.status)
            (ended,), others = await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
            statuses.append(ended.result().status)
            for each in others:
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            while sum(made.door._pending._of.values()):
                await asyncio.sleep(0)
        server.close()
        await http.shutdown(1.0)
        return statuses

    assert asyncio.run(run()) == [200, 503]
    assert made.shelf.counted[0] == "bodies-evicted"


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    made = visit(body_timeout=0.1)
    assert made.knock(REMOTE_PATH, slow()).status == 408
    assert made.shelf.counted == ["bodies-too-slow"]
