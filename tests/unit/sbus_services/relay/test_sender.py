"""The state of a message after an attempt to send it, and the limit for each host."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sbus_programs.config.relay import RelaySettings
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.relay.http.client import PeerRejectedError, PeerUnreachableError
from sbus_services.relay.message_model import RelayMessage
from sbus_services.relay.redis.client import RedisUnavailableError
from sbus_services.relay.redis.store import Claim
from sbus_services.relay.resolver import ResolverUnavailableError, UnknownHostError
from sbus_services.relay.sender import TWIN_SENDS, Attempt, Sender
from tests.support.bus_hosts import SECOND
from tests.support.message_stores import outgoing


def claim(number: int = 1, *, is_request: bool = True, twin: int = SECOND) -> Claim:
    """Return a claimed message."""
    message = outgoing(number, twin=twin).message
    return Claim(f"{'q' if is_request else f'r:{twin}'}:{message.uid}", b"7.5", message.encode(), 3, 2, twin)


class FakeStore:
    """A store and queue handler that record the result of each message."""

    def __init__(self) -> None:
        self.results: list[tuple[str, str]] = []
        self.waiting: list[Claim] = []
        self.says = "postponed"

    async def twins(self) -> list[int]:
        """Return the hosts with waiting messages."""
        return sorted({each.twin for each in self.waiting})

    async def claim(self, twin: int, most: int, _seconds: float) -> tuple[float, list[Claim]]:
        """Return waiting messages."""
        found = [each for each in self.waiting if each.twin == twin][:most]
        self.waiting = [each for each in self.waiting if each not in found]
        return -1.0, found

    async def sent(self, held: Claim) -> str:
        """Record the delivery."""
        self.results.append(("sent", held.id))
        return "sent"

    async def postpone(self, held: Claim, reason: str) -> str:
        """Record the retry."""
        self.results.append((self.says, reason))
        return self.says

    async def drop(self, held: Claim, counted: str) -> str:
        """Record the end."""
        self.results.append(("dropped", counted))
        return "dropped"

    async def answer(self, request: RelayMessage, reply: RelayMessage, outcome: str, *, token: bytes) -> str:
        """Record the response to the client."""
        assert token == b"7.5"
        assert (reply.src, reply.dst) == (request.dst[0], (request.src,))
        self.results.append((outcome, reply.err))
        return "answered"

    def report_undeliverable(self, said: str, ret: str) -> None:
        """Record the return queue."""
        self.results.append((said, ret))


class FakeNetwork:
    """The HTTP client and the resolver, which fail with *error*."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.sent: list[tuple[str, RelayMessage]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def resolve(self, twin: int) -> str:
        """Return the address of *twin*."""
        if isinstance(self.error, UnknownHostError | ResolverUnavailableError):
            raise self.error
        return "10.0.0.2:8051"

    async def send(self, twin: int, address: str, path: str, body: bytes) -> None:
        """Send a message."""
        self.sent.append((path, RelayMessage.parse(body)))
        await self.is_open.wait()
        if self.error is not None:
            raise self.error


class SenderFixture:
    """A sender with its environment."""

    def __init__(self, error: Exception | None = None) -> None:
        self.store = FakeStore()
        self.network = FakeNetwork(error)
        self.attempts: list[Attempt] = []
        around: Any = self.store
        network: Any = self.network
        journal = LimitedLog("sbus-relay")
        self.sender = Sender(RelaySettings(), around, around, client=network, resolver=network, journal=journal, observer=self.observe)

    def observe(self, attempt: Attempt) -> None:
        """Record an attempt."""
        self.attempts.append(attempt)

    async def settle(self, *claims: Claim) -> None:
        """Send *claims*, and wait until all have a result."""
        for each in claims:
            self.sender.begin(each)
        while self.sender._sends:
            await asyncio.sleep(0)


def run(body: Callable[[SenderFixture], Awaitable[None]], error: Exception | None = None) -> SenderFixture:
    """Run *body* with a sender whose network fails with *error*."""

    async def bounded() -> SenderFixture:
        fixture = SenderFixture(error)
        async with asyncio.timeout(300):
            await body(fixture)
        return fixture

    return asyncio.run(bounded())


def test_a_delivered_message_is_finished() -> None:
    fixture = run(lambda fixture: fixture.settle(claim(), claim(2, is_request=False)))
    assert fixture.store.results == [("sent", "q:1002.1"), ("sent", "r:1002:1002.2")]
    assert [path for path, _ in fixture.network.sent] == ["/zbus-remote", "/zbus-reply"]
    # A request contains the retries left; a response is unchanged.
    assert [message.try_ for _, message in fixture.network.sent] == [3, 1]
    assert [(attempt.twin, attempt.number, attempt.outcome) for attempt in fixture.attempts] == [(SECOND, 2, "sent")] * 2


@pytest.mark.parametrize("error", [PeerUnreachableError("no route"), ResolverUnavailableError("no route")])
def test_unreachable_host_is_retried_and_logged_once(error: Exception, capfd: pytest.CaptureFixture[str]) -> None:
    async def body(fixture: SenderFixture) -> None:
        await fixture.settle(claim(1), claim(2))
        fixture.network.error = None
        await fixture.settle(claim(3))

    fixture = run(body, error)
    assert fixture.store.results == [("postponed", "no route")] * 2 + [("sent", "q:1002.3")]
    reported = capfd.readouterr().err
    assert reported.count("remote host 1002 unreachable: no route") == 1
    assert reported.count("remote host 1002 reachable again") == 1


def test_the_last_try_is_answered() -> None:
    async def body(fixture: SenderFixture) -> None:
        fixture.store.says = "exhausted"
        await fixture.settle(claim(), claim(2, is_request=False))

    fixture = run(body, PeerUnreachableError("no route"))
    failed = ("failed", "destination not reached after 2 attempts: no route")
    assert fixture.store.results == [
        ("exhausted", "no route"),
        failed,
        ("answered", "ret-1"),
        ("exhausted", "no route"),
        ("dropped", "answers-expired"),
    ]


@pytest.mark.parametrize(("error", "outcome"), [(PeerRejectedError("no"), "refused"), (UnknownHostError("no"), "unknown")])
def test_a_refusal_is_not_tried_again(error: Exception, outcome: str, capfd: pytest.CaptureFixture[str]) -> None:
    fixture = run(lambda fixture: fixture.settle(claim(), claim(2, is_request=False)), error)
    assert fixture.store.results == [("failed", "no"), ("answered", "ret-1"), ("dropped", "answers-refused")]
    assert [attempt.outcome for attempt in fixture.attempts] == [outcome] * 2
    assert "message 1002.1 to host 1002 failed: no" in capfd.readouterr().err


def test_messages_beyond_the_limit_of_a_host_wait(capfd: pytest.CaptureFixture[str]) -> None:
    async def body(fixture: SenderFixture) -> None:
        fixture.network.is_open.clear()
        fixture.store.waiting = [claim(number) for number in range(1, 2 * TWIN_SENDS + 1)]
        fixture.store.waiting.append(claim(99, twin=1003))
        running = asyncio.create_task(fixture.sender.run())
        while len(fixture.network.sent) < TWIN_SENDS + 1:
            await asyncio.sleep(0)
        assert fixture.sender.hold_seconds(SECOND) == 0.0
        assert fixture.sender.hold_seconds(1003) > 0.0  # a slow host does not delay others
        assert len(fixture.store.waiting) == TWIN_SENDS
        fixture.network.is_open.set()
        while len(fixture.store.results) < 2 * TWIN_SENDS + 1 or fixture.sender._sends:
            await asyncio.sleep(0)
        while fixture.sender.hold_seconds(SECOND) == 0.0:  # until it notices that nothing waits
            await asyncio.sleep(0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    fixture = run(body)
    assert len(fixture.network.sent) == 2 * TWIN_SENDS + 1
    assert capfd.readouterr().err == ""


def test_new_message_does_not_overtake_waiting_ones() -> None:
    """Otherwise waiting messages would starve."""

    async def body(fixture: SenderFixture) -> None:
        fixture.network.is_open.clear()
        for number in range(TWIN_SENDS):
            assert fixture.sender.hold_seconds(SECOND) > 0.0
            fixture.sender.begin(claim(number + 1))
        assert fixture.sender.hold_seconds(SECOND) == 0.0
        fixture.store.waiting = [claim(TWIN_SENDS + 1)]
        fixture.network.is_open.set()
        await fixture.settle()
        assert fixture.sender.hold_seconds(SECOND) == 0.0
        running = asyncio.create_task(fixture.sender.run())
        while fixture.sender.hold_seconds(SECOND) == 0.0:
            await asyncio.sleep(0)
        assert fixture.store.waiting == []
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    run(body)


def test_unexpected_error_is_logged_and_unavailable_redis_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    run(lambda fixture: fixture.settle(claim()), RedisUnavailableError("away"))
    assert capfd.readouterr().err == ""
    run(lambda fixture: fixture.settle(claim()), ZeroDivisionError("by zero"))
    assert "internal error in the sender: ZeroDivisionError: by zero" in capfd.readouterr().err
