"""Sends messages to remote hosts, and publishes each attempt on the bus for the recorder. Spec: sbus-relay(8); rows: sbus-record(5).

Each host has its own limit, so that a slow host does not delay the others. The relay never waits for the bus. Attempts that the bus does
not accept in time are dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sbus import AsyncBus
from sbus.protocol.envelope import call_digest
from sbus.protocol.errors import SbusError
from sbus.protocol.printable import printable
from sbus_programs.config.relay import RelaySettings
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.relay.http.client import HttpClient, PeerRejectedError, PeerUnreachableError
from sbus_services.relay.http.server import REMOTE_PATH, REPLY_PATH
from sbus_services.relay.log_messages import FAULT, PEER_REACHABLE, PEER_REFUSED, PEER_UNREACHABLE
from sbus_services.relay.message_model import RelayMessage
from sbus_services.relay.queue_handler import QueueHandler
from sbus_services.relay.redis.client import RedisUnavailableError
from sbus_services.relay.redis.store import Claim, MessageStore
from sbus_services.relay.resolver import Resolver, ResolverUnavailableError, UnknownHostError

TWIN_SENDS = 16
"""Concurrent messages for one host: enough to use the network fully, within the other relay's limit of connections."""

TWIN_SENDS_RESUME = TWIN_SENDS * 3 // 4
"""At this number of concurrent messages the next batch is claimed: several at a time, because each claim is a round trip to Redis."""

TURN_SECONDS = 1.0
"""Longest interval between two searches for messages that other relays on the same Redis left behind."""

ATTEMPT_KEY = "relay/attempt"
"""The key of published attempts. Calls use ``relay/<twin>/…``, so no call has this key."""

MAX_WAITING_ATTEMPTS = 10_000
"""Attempts that wait for the bus: a few seconds of the fastest relay, a few megabytes."""

BUS_RETRY_SECONDS = 5.0
"""Pause before the next connection attempt to a bus that is not available."""

_BUS_TIMEOUT_SECONDS = 10.0


class Sender:
    """Sends messages until cancelled. Interrupted messages are sent again by the next relay."""

    def __init__(
        self,
        settings: RelaySettings,
        store: MessageStore,
        handler: QueueHandler,
        *,
        client: HttpClient,
        resolver: Resolver,
        journal: LimitedLog,
        observer: AttemptObserver,
        call_of: Callable[[str], str | None] = lambda _uid: None,
    ) -> None:
        """*handler* reports undeliverable responses; *call_of* returns the digest of the bus call that became the request ``uid``."""
        self._store = store
        self._handler = handler
        self._client = client
        self._resolver = resolver
        self._journal = journal
        self._observe = observer
        self._call_of = call_of
        # A relay without a result by then is dead, or so slow that the remote host receives a duplicate.
        self._claim_seconds = 2 * settings.request_timeout + settings.lease
        self._wake = asyncio.Event()
        self._sends: dict[asyncio.Task[bool], int] = {}
        self._busy: Counter[int] = Counter()
        self._backlogged: set[int] = set()  # hosts that may have waiting messages that are due
        self._unreachable: set[int] = set()

    def wake(self) -> None:
        """Check at once for messages that are due."""
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled. Raises RedisUnavailableError; then call it again."""
        try:
            while True:
                self._wake.clear()
                delay = TURN_SECONDS
                twins = await self._store.twins()
                self._backlogged.intersection_update(twins)
                for twin in twins:
                    delay = min(delay, await self._send_due(twin))
                try:
                    async with asyncio.timeout(delay):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            tasks = list(self._sends)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_due(self, twin: int) -> float:
        """Start sending the messages for *twin* that are due; return the seconds until the next check."""
        if self._is_busy(twin):
            return TURN_SECONDS  # the end of a send wakes the loop
        most = TWIN_SENDS - self._busy[twin]
        due, claims = await self._store.claim(twin, most, self._claim_seconds)
        if len(claims) < most:
            self._backlogged.discard(twin)
        else:
            self._backlogged.add(twin)
        for claim in claims:
            self.begin(claim)
        return TURN_SECONDS if due < 0 or self._is_busy(twin) else max(0.001, due)

    def hold_seconds(self, twin: int) -> float:
        """Return for how long to hold a message for *twin* that is sent at once, in seconds; 0 if it must wait for others."""
        if self._is_busy(twin):
            self._backlogged.add(twin)
        # A new message must not overtake those that wait.
        return 0.0 if twin in self._backlogged else self._claim_seconds

    def begin(self, claim: Claim) -> None:
        """Start sending a held message. Must be called within the event loop."""
        task = asyncio.get_running_loop().create_task(self._send(claim))
        self._sends[task] = claim.twin
        self._busy[claim.twin] += 1
        task.add_done_callback(self._done)

    def _is_busy(self, twin: int) -> bool:
        """Return whether *twin* has reached its limit of concurrent messages."""
        return self._busy[twin] >= TWIN_SENDS

    def _done(self, task: asyncio.Task[bool]) -> None:
        """Continue with waiting messages. Log unexpected errors; other tasks report an unavailable Redis."""
        twin = self._sends.pop(task)
        error = None if task.cancelled() else task.exception()
        self._busy[twin] -= 1
        may_claim = twin in self._backlogged and self._busy[twin] <= TWIN_SENDS_RESUME
        if may_claim or task.cancelled() or error is not None or not task.result():
            self._wake.set()
        if not self._busy[twin]:
            del self._busy[twin]
        if error is not None and not isinstance(error, RedisUnavailableError):
            self._journal.record_limited(FAULT, "sender", where="the sender", reason=f"{type(error).__name__}: {error}")

    async def _send(self, claim: Claim) -> bool:
        """Make one attempt to send a message, and store its result; return whether it was delivered."""
        message = RelayMessage.parse(claim.body)
        began = time.monotonic_ns()
        outcome, reason = "sent", ""
        try:
            address = await self._resolver.resolve(claim.twin)
            path = REMOTE_PATH if claim.is_request else REPLY_PATH
            body = (message.with_(try_=claim.tries) if claim.is_request else message).encode()
            await self._client.send(claim.twin, address, path, body)
        except UnknownHostError as error:
            outcome, reason = "unknown", str(error)
        except PeerRejectedError as error:
            outcome, reason = "refused", str(error)
        except (PeerUnreachableError, ResolverUnavailableError) as error:
            outcome, reason = "unreachable", str(error)
        # Messages that did not come from the bus are identified by host and uid, which are never reused.
        call = (self._call_of(message.uid) if claim.is_request else None) or call_digest(0, b"", claim.id)
        self._observe(Attempt(claim.twin, message.cmd, claim.attempt, outcome, reason, time.monotonic_ns() - began, call))
        await self._conclude(claim, message, outcome, reason)
        return outcome == "sent"

    async def _conclude(self, claim: Claim, message: RelayMessage, outcome: str, reason: str) -> None:
        """Change the state of the message according to the result."""
        if outcome == "sent":
            await self._store.sent(claim)
            if claim.twin in self._unreachable:
                self._unreachable.discard(claim.twin)
                self._journal.record(PEER_REACHABLE, twin=claim.twin)
            return
        if outcome == "unreachable":
            if claim.twin not in self._unreachable:
                self._unreachable.add(claim.twin)
                self._journal.record(PEER_UNREACHABLE, twin=claim.twin, reason=reason)
            if await self._store.postpone(claim, reason) != "exhausted":
                return
            reason = f"destination not reached after {claim.attempt} attempts: {reason}"
        else:
            self._journal.record_limited(PEER_REFUSED, str(claim.twin), twin=claim.twin, uid=message.uid, reason=reason)
        if claim.is_request:
            failure = message.with_(try_=claim.tries).failure(reason, time.time())
            self._handler.report_undeliverable(await self._store.answer(message, failure, "failed", token=claim.token), message.ret)
        else:
            await self._store.drop(claim, "answers-refused" if outcome != "unreachable" else "answers-expired")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to deliver a message to a remote host."""

    twin: int
    command: str
    number: int
    """From 1."""
    outcome: str
    """``sent``, ``unreachable``, ``refused`` or ``unknown``."""
    reason: str
    """Why it failed; empty if the message was sent."""
    duration_ns: int
    call: str
    """``call_digest`` of the bus call; for a request that did not come from the bus, a digest of its own."""


AttemptObserver = Callable[[Attempt], None]
"""Called for each attempt; must not block."""


class AttemptPublisher:
    """Publishes attempts on the bus while :meth:`run` runs."""

    def __init__(self, address: str, count: Callable[[str, int], Awaitable[None]], observer: AttemptObserver | None = None) -> None:
        """*count* counts dropped attempts; *observer* is also called for each attempt."""
        self._address = address
        self._count = count
        self._observer = observer
        self._waiting: asyncio.Queue[Attempt] = asyncio.Queue(MAX_WAITING_ATTEMPTS)
        self._dropped = 0

    def publish(self, attempt: Attempt) -> None:
        """Queue *attempt* for publication; drop it if the queue is full."""
        if self._observer is not None:
            self._observer(attempt)
        try:
            self._waiting.put_nowait(attempt)
        except asyncio.QueueFull:
            self._dropped += 1

    async def run(self) -> None:
        """Publish queued attempts until cancelled. Raises RedisUnavailableError if drops cannot be counted; then call it again."""
        while True:
            with contextlib.suppress(SbusError, OSError):
                async with AsyncBus.connect(self._address, timeout=_BUS_TIMEOUT_SECONDS) as bus:
                    while True:
                        attempt = await self._waiting.get()
                        self._dropped += 1  # until the bus has accepted it
                        await bus.publish(ATTEMPT_KEY, encode_attempt(attempt))
                        self._dropped -= 1
            await self._drop_waiting()

    async def _drop_waiting(self) -> None:
        """Drop and count the queued attempts, then pause: the bus is not available."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
            self._dropped += 1
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            await self._count("attempts-unpublished", dropped)
        await asyncio.sleep(BUS_RETRY_SECONDS)


def encode_attempt(attempt: Attempt) -> bytes:
    """Return *attempt* in the JSON format that the recorder reads."""
    members = {
        "twin": attempt.twin,
        "cmd": attempt.command,
        "attempt": attempt.number,
        "code": attempt.outcome,
        "reason": attempt.reason,
        "duration": attempt.duration_ns,
        "call": attempt.call,
    }
    return json.dumps(members, separators=(",", ":")).encode()


def print_attempt(attempt: Attempt) -> None:
    """Write *attempt* to standard error in one line, for ``--debug``."""
    reason = f": {attempt.reason}" if attempt.reason else ""
    words = f"attempt {attempt.number} of {attempt.command} to host {attempt.twin}: {attempt.outcome}{reason}"
    print(f"sbus-relay: {printable(words)} ({attempt.duration_ns / 1e6:.1f} ms)", file=sys.stderr, flush=True)
