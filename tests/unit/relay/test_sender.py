"""What becomes of a message by how its try went, and how many are on their way to one twin."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sbusd.config.relay import RelaySettings
from sbusd.relay.attempts import Attempt
from sbusd.relay.errors import PeerAwayError, PeerRefusalError, ResolverAwayError, UnknownTwinError
from sbusd.relay.log_messages import RelayLog
from sbusd.relay.message_model import Message
from sbusd.relay.redis.link import RedisAwayError
from sbusd.relay.redis.store import Claim
from sbusd.relay.sender import TWIN_SENDS, Sender
from tests.support.stores import order
from tests.support.towns import SECOND


def claim(number: int = 1, *, is_request: bool = True, twin: int = SECOND) -> Claim:
    """Return a message that is held."""
    message = order(number, twin=twin).message
    return Claim(f"{'q' if is_request else f'r:{twin}'}:{message.uid}", b"7.5", message.encode(), 3, 2, twin)


class Books:
    """The store and the desk, in which is noted what becomes of each message."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str]] = []
        self.waiting: list[Claim] = []
        self.says = "postponed"

    async def twins(self) -> list[int]:
        """Return the twins that messages wait for."""
        return sorted({each.twin for each in self.waiting})

    async def claim(self, twin: int, most: int, _seconds: float) -> tuple[float, list[Claim]]:
        """Return what waits."""
        found = [each for each in self.waiting if each.twin == twin][:most]
        self.waiting = [each for each in self.waiting if each not in found]
        return -1.0, found

    async def sent(self, held: Claim) -> str:
        """Note that it has arrived."""
        self.noted.append(("sent", held.id))
        return "sent"

    async def postpone(self, held: Claim, reason: str) -> str:
        """Note that it is tried again."""
        self.noted.append((self.says, reason))
        return self.says

    async def drop(self, held: Claim, counted: str) -> str:
        """Note that it ends."""
        self.noted.append(("dropped", counted))
        return "dropped"

    async def answer(self, request: Message, reply: Message, outcome: str, *, token: bytes) -> str:
        """Note that its client is told."""
        assert token == b"7.5"
        assert (reply.src, reply.dst) == (request.dst[0], (request.src,))
        self.noted.append((outcome, reply.err))
        return "answered"

    def told(self, said: str, ret: str) -> None:
        """Note to whom."""
        self.noted.append((said, ret))


class Road:
    """The courier and the resolver: each message meets what is on the road."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.brought: list[tuple[str, Message]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def resolve(self, twin: int) -> str:
        """Return where *twin* is."""
        if isinstance(self.error, UnknownTwinError | ResolverAwayError):
            raise self.error
        return "10.0.0.2:8051"

    async def bring(self, twin: int, address: str, path: str, body: bytes) -> None:
        """Bring a message."""
        self.brought.append((path, Message.parse(body)))
        await self.is_open.wait()
        if self.error is not None:
            raise self.error


class Made:
    """A sender with all around it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.books = Books()
        self.road = Road(error)
        self.attempts: list[Attempt] = []
        around: Any = self.books
        road: Any = self.road
        self.sender = Sender(RelaySettings(), around, around, courier=road, resolver=road, journal=RelayLog(), witness=self)

    def saw(self, attempt: Attempt) -> None:
        """Take note of an attempt."""
        self.attempts.append(attempt)

    async def settle(self, *claims: Claim) -> None:
        """Send *claims*, and wait until all is noted."""
        for each in claims:
            self.sender.begin(each)
        while self.sender._sends:
            await asyncio.sleep(0)


def run(body: Callable[[Made], Awaitable[None]], error: Exception | None = None) -> Made:
    """Run *body* with a sender whose road has *error* on it."""

    async def bounded() -> Made:
        made = Made(error)
        async with asyncio.timeout(30):
            await body(made)
        return made

    return asyncio.run(bounded())


def test_what_arrives_is_done() -> None:
    made = run(lambda made: made.settle(claim(), claim(2, is_request=False)))
    assert made.books.noted == [("sent", "q:1002.1"), ("sent", "r:1002:1002.2")]
    assert [path for path, _ in made.road.brought] == ["/zbus-remote", "/zbus-reply"]
    # A request says how many tries are left; an answer goes as it is.
    assert [message.try_ for _, message in made.road.brought] == [3, 1]
    assert [(attempt.twin, attempt.number, attempt.outcome) for attempt in made.attempts] == [(SECOND, 2, "sent")] * 2


@pytest.mark.parametrize("error", [PeerAwayError("no route"), ResolverAwayError("no route")])
def test_who_is_away_is_tried_again_and_told_of_once(error: Exception, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(made: Made) -> None:
        await made.settle(claim(1), claim(2))
        made.road.error = None
        await made.settle(claim(3))

    made = run(body, error)
    assert made.books.noted == [("postponed", "no route")] * 2 + [("sent", "q:1002.3")]
    told = capfd.readouterr().err
    assert told.count("remote host 1002 unreachable: no route") == 1
    assert told.count("remote host 1002 reachable again") == 1


def test_the_last_try_is_answered() -> None:
    async def body(made: Made) -> None:
        made.books.says = "exhausted"
        await made.settle(claim(), claim(2, is_request=False))

    made = run(body, PeerAwayError("no route"))
    failed = ("failed", "destination not reached after 2 attempts: no route")
    assert made.books.noted == [
        ("exhausted", "no route"),
        failed,
        ("answered", "ret-1"),
        ("exhausted", "no route"),
        ("dropped", "answers-expired"),
    ]


@pytest.mark.parametrize(("error", "outcome"), [(PeerRefusalError("no"), "refused"), (UnknownTwinError("no"), "unknown")])
def test_a_refusal_is_not_tried_again(error: Exception, outcome: str, capfd: pytest.CaptureFixture[str]) -> None:
    made = run(lambda made: made.settle(claim(), claim(2, is_request=False)), error)
    assert made.books.noted == [("failed", "no"), ("answered", "ret-1"), ("dropped", "answers-refused")]
    assert [attempt.outcome for attempt in made.attempts] == [outcome] * 2
    assert "message 1002.1 to host 1002 failed: no" in capfd.readouterr().err


def test_so_many_are_on_their_way_to_one_twin_and_the_rest_waits(capfd: pytest.CaptureFixture[str]) -> None:
    async def body(made: Made) -> None:
        made.road.is_open.clear()
        made.books.waiting = [claim(number) for number in range(1, 2 * TWIN_SENDS + 1)]
        made.books.waiting.append(claim(99, twin=1003))
        running = asyncio.create_task(made.sender.run())
        while len(made.road.brought) < TWIN_SENDS + 1:
            await asyncio.sleep(0)
        assert made.sender.hold_seconds(SECOND) == 0.0
        assert made.sender.hold_seconds(1003) > 0.0  # one that is slow keeps nobody else waiting
        assert len(made.books.waiting) == TWIN_SENDS
        made.road.is_open.set()
        while len(made.books.noted) < 2 * TWIN_SENDS + 1 or made.sender._sends:
            await asyncio.sleep(0)
        while made.sender.hold_seconds(SECOND) == 0.0:  # until it has seen that nothing waits
            await asyncio.sleep(0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    made = run(body)
    assert len(made.road.brought) == 2 * TWIN_SENDS + 1
    assert capfd.readouterr().err == ""


def test_who_comes_while_others_wait_stands_behind_them() -> None:
    """Else those who wait would wait for ever while new ones take each place that becomes free."""

    async def body(made: Made) -> None:
        made.road.is_open.clear()
        for number in range(TWIN_SENDS):
            assert made.sender.hold_seconds(SECOND) > 0.0
            made.sender.begin(claim(number + 1))
        assert made.sender.hold_seconds(SECOND) == 0.0
        made.books.waiting = [claim(TWIN_SENDS + 1)]
        made.road.is_open.set()
        await made.settle()
        assert made.sender.hold_seconds(SECOND) == 0.0
        running = asyncio.create_task(made.sender.run())
        while made.sender.hold_seconds(SECOND) == 0.0:
            await asyncio.sleep(0)
        assert made.books.waiting == []
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    run(body)


def test_a_mistake_is_told_and_a_redis_that_is_away_is_others_to_tell(capfd: pytest.CaptureFixture[str]) -> None:
    run(lambda made: made.settle(claim()), RedisAwayError("away"))
    assert capfd.readouterr().err == ""
    run(lambda made: made.settle(claim()), ZeroDivisionError("by zero"))
    assert "internal error in the sender: ZeroDivisionError: by zero" in capfd.readouterr().err
