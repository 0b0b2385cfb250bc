"""Sends what waits for other hosts: each twin by itself, so that one that hangs keeps nobody else waiting. Spec: sbus-relay(8)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from sbusd.config.relay import RelaySettings
from sbusd.protocol.envelope import call_digest
from sbusd.relay.attempts import Attempt, Witness
from sbusd.relay.errors import PeerAwayError, PeerRefusalError, ResolverAwayError, UnknownTwinError
from sbusd.relay.http.client import Courier
from sbusd.relay.http.server import REMOTE_PATH, REPLY_PATH
from sbusd.relay.log_messages import FAULT, PEER_AWAY, PEER_BACK, PEER_REFUSED, RelayLog
from sbusd.relay.message_model import Message
from sbusd.relay.queue_handler import Desk
from sbusd.relay.redis.link import RedisAwayError
from sbusd.relay.redis.store import Claim, Store
from sbusd.relay.resolver import Resolver

TWIN_SENDS = 16
"""Messages that are on their way to one twin: enough to fill a network, and few enough for the other's limit of connections."""

TWIN_SENDS_AGAIN = TWIN_SENDS * 3 // 4
"""With so few, more are claimed of what waits: several at a time, for each claim is a way to Redis."""

TURN_SECONDS = 1.0
"""How often what other relays at the same Redis left is looked for, if nothing is due sooner."""


class Sender:
    """Sends messages until it is cancelled; what was on its way then is tried again by whoever comes next."""

    def __init__(
        self,
        settings: RelaySettings,
        store: Store,
        desk: Desk,
        *,
        courier: Courier,
        resolver: Resolver,
        journal: RelayLog,
        witness: Witness,
        call_of: Callable[[str], str | None] = lambda _uid: None,
    ) -> None:
        """*desk* knows how a client is told that a request has failed; *call_of* the digest of the bus's call that has a ``uid``."""
        self._store = store
        self._desk = desk
        self._courier = courier
        self._resolver = resolver
        self._journal = journal
        self._witness = witness
        self._call_of = call_of
        # A relay that has not said by then what became of a message is dead, or so slow that the other host gets a copy.
        self._claim_seconds = 2 * settings.request_timeout + settings.lease
        self._wake = asyncio.Event()
        self._sends: dict[asyncio.Task[bool], int] = {}
        self._busy: Counter[int] = Counter()
        self._crowded: set[int] = set()  # twins for which messages may wait that are due
        self._away: set[int] = set()

    def wake(self) -> None:
        """Look at once for what is due."""
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled. Raises RedisAwayError; then run again."""
        try:
            while True:
                self._wake.clear()
                delay = TURN_SECONDS
                twins = await self._store.twins()
                self._crowded.intersection_update(twins)
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
        """Begin to send what is due at *twin*; return after how many seconds to look again."""
        if self._is_busy(twin):
            return TURN_SECONDS  # the end of one wakes us
        most = TWIN_SENDS - self._busy[twin]
        due, claims = await self._store.claim(twin, most, self._claim_seconds)
        if len(claims) < most:
            self._crowded.discard(twin)
        else:
            self._crowded.add(twin)
        for claim in claims:
            self.begin(claim)
        return TURN_SECONDS if due < 0 or self._is_busy(twin) else max(0.001, due)

    def hold_seconds(self, twin: int) -> float:
        """Return for how many seconds a message for *twin* is to be held that is sent at once; 0: it has to wait for others."""
        if self._is_busy(twin):
            self._crowded.add(twin)
        # Who comes while others wait stands behind them.
        return 0.0 if twin in self._crowded else self._claim_seconds

    def begin(self, claim: Claim) -> None:
        """Send what is held. Must be called within the loop."""
        task = asyncio.get_running_loop().create_task(self._send(claim))
        self._sends[task] = claim.twin
        self._busy[claim.twin] += 1
        task.add_done_callback(self._done)

    def _is_busy(self, twin: int) -> bool:
        """Return whether no more goes to *twin* now."""
        return self._busy[twin] >= TWIN_SENDS

    def _done(self, task: asyncio.Task[bool]) -> None:
        """Look for more, if something may wait. What was wrong is told: Redis away is the others' to tell, all else is a mistake."""
        twin = self._sends.pop(task)
        error = None if task.cancelled() else task.exception()
        self._busy[twin] -= 1
        may_claim = twin in self._crowded and self._busy[twin] <= TWIN_SENDS_AGAIN
        if may_claim or task.cancelled() or error is not None or not task.result():
            self._wake.set()
        if not self._busy[twin]:
            del self._busy[twin]
        if error is not None and not isinstance(error, RedisAwayError):
            self._journal.record_limited(FAULT, "sender", where="the sender", reason=f"{type(error).__name__}: {error}")

    async def _send(self, claim: Claim) -> bool:
        """Try once to send one message, and note what came of it; return whether it has arrived."""
        message = Message.parse(claim.body)
        began = time.monotonic_ns()
        outcome, reason = "sent", ""
        try:
            address = await self._resolver.resolve(claim.twin)
            path = REMOTE_PATH if claim.is_request else REPLY_PATH
            body = (message.with_(try_=claim.tries) if claim.is_request else message).encode()
            await self._courier.bring(claim.twin, address, path, body)
        except UnknownTwinError as error:
            outcome, reason = "unknown", str(error)
        except PeerRefusalError as error:
            outcome, reason = "refused", str(error)
        except (PeerAwayError, ResolverAwayError) as error:
            outcome, reason = "away", str(error)
        # Of what came from elsewhere, twin and uid say which it is, on this host and for ever.
        call = (self._call_of(message.uid) if claim.is_request else None) or call_digest(0, b"", claim.id)
        self._witness.saw(Attempt(claim.twin, message.cmd, claim.attempt, outcome, reason, time.monotonic_ns() - began, call))
        await self._conclude(claim, message, outcome, reason)
        return outcome == "sent"

    async def _conclude(self, claim: Claim, message: Message, outcome: str, reason: str) -> None:
        """Bring the message into the state that follows."""
        if outcome == "sent":
            await self._store.sent(claim)
            if claim.twin in self._away:
                self._away.discard(claim.twin)
                self._journal.record(PEER_BACK, twin=claim.twin)
            return
        if outcome == "away":
            if claim.twin not in self._away:
                self._away.add(claim.twin)
                self._journal.record(PEER_AWAY, twin=claim.twin, reason=reason)
            if await self._store.postpone(claim, reason) != "exhausted":
                return
            reason = f"destination not reached after {claim.attempt} attempts: {reason}"
        else:
            self._journal.record_limited(PEER_REFUSED, str(claim.twin), twin=claim.twin, uid=message.uid, reason=reason)
        if claim.is_request:
            failure = message.with_(try_=claim.tries).failure(reason, time.time())
            self._desk.told(await self._store.answer(message, failure, "failed", token=claim.token), message.ret)
        else:
            await self._store.drop(claim, "answers-refused" if outcome != "away" else "answers-expired")
