"""Processes each message of the queues of client requests, remote requests and responses. Spec: sbus-relay(8), "Message flow".

Nothing here waits for a remote host. If processing is interrupted, by a Redis error or the end of the process, the message stays in
its list and is processed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sbus.protocol.printable import printable
from sbus_programs.config.relay import RelaySettings
from sbus_programs.systemd.log_records import LimitedLog
from sbus_services.relay.log_messages import FORGED, FULL, MALFORMED, UNDELIVERED
from sbus_services.relay.message_model import InvalidMessageError, RelayMessage, is_reserved
from sbus_services.relay.redis import names
from sbus_services.relay.redis.store import Claim, MessageStore, OutgoingRequest

FULL_WORDS = "too many pending requests; try again later"

ABANDONED_WORDS = "the relay of host {twin} ended while a service there handled the request for {cmd}; it may have been run"


class LocalServices(Protocol):
    """The services on this host's bus."""

    async def take(self, raw: bytes, request: RelayMessage) -> bool:
        """Run *request*, which is *raw* of the request queue. Return False, without effect, if no service is subscribed."""


class ImmediateSender(Protocol):
    """Sends messages at once while there is capacity."""

    def hold_seconds(self, twin: int) -> float:
        """Return for how long to hold a message for *twin* that is sent at once, in seconds; 0 if it must wait for others."""

    def begin(self, claim: Claim) -> None:
        """Start sending a held message."""


class QueueHandler:
    """Processes messages, one at a time."""

    services: LocalServices | None = None
    """Asked first whether they serve a request of a remote host."""

    sender: ImmediateSender | None = None
    """Sends at once. Without it, messages wait and ``wake`` is called."""

    def __init__(
        self,
        twin: int,
        settings: RelaySettings,
        store: MessageStore,
        journal: LimitedLog,
        *,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """*twin* is the number of this host; *wake* is called for messages that are due but not sent at once."""
        self._wake = wake
        self._twin = twin
        self._settings = settings
        self._store = store
        self._journal = journal
        self._clock = clock

    async def take(self, queue: str, raw: bytes) -> None:
        """Process *raw*, which was taken from *queue*. Raises RedisUnavailableError."""
        try:
            message = self._parse(raw, any_error=queue == names.REPLY)
            if queue == names.LOCAL:
                await self._dispatch(raw, message)
            elif queue == names.REMOTE:
                await self._deliver(raw, message)
            elif queue == names.ABANDONED:
                await self.decline(raw, message, ABANDONED_WORDS.format(twin=self._twin, cmd=message.cmd), queue)
            else:
                await self._answer(raw, message)
        except InvalidMessageError as wrong:
            await self._discard(queue, raw, wrong)

    def _parse(self, raw: bytes, *, any_error: bool) -> RelayMessage:
        """Parse *raw*; *any_error* is for responses of applications. Raises InvalidMessageError."""
        if len(raw) > self._settings.body_bytes:
            raise InvalidMessageError(f"the message has {len(raw)} bytes; the limit is {self._settings.body_bytes}")
        return RelayMessage.parse(raw, any_error=any_error)

    async def _dispatch(self, raw: bytes, request: RelayMessage) -> None:
        """Split the request of a client into one request for each destination."""
        now = self._clock()
        if problem := self._problem(request, now):
            raise InvalidMessageError(problem, request.ret, request.dst, request.cmd, request.ref)
        if request.ret.startswith("msgbus."):
            raise InvalidMessageError("ret: names that begin with msgbus. are reserved; use a name of your own, such as a UUID")
        requests = [self._outgoing(request, twin, await self.next_uid(twin), now) for twin in request.dst]
        await self._send(raw, requests)

    async def next_uid(self, twin: int) -> str:
        """Return the ``uid`` of the next request to *twin*. Raises RedisUnavailableError."""
        return f"{twin}.{await self._store.next_number(twin)}"

    async def call(self, request: RelayMessage, uid: str) -> None:
        """Send a bus call with the given *uid* to the one host of its ``dst``. Its one response is pushed to its ``ret``.

        Raises:
            InvalidMessageError: the call cannot be sent.
            RedisUnavailableError: Redis does not respond; whether the call was sent is unknown.
        """
        now = self._clock()
        size = len(request.encode())
        if size > self._settings.body_bytes:
            raise InvalidMessageError(f"the message has {size} bytes; the limit is {self._settings.body_bytes}")
        if problem := self._problem(request, now):
            raise InvalidMessageError(problem)
        await self._send(b"", [self._outgoing(request, request.dst[0], uid, now)])

    def _outgoing(self, request: RelayMessage, twin: int, uid: str, now: float) -> OutgoingRequest:
        """Return *request* as it is sent to *twin*."""
        sent_at = min(request.now, int(now)) or int(now)
        left = request.expiry_seconds + 1 - max(0.0, now - sent_at)
        one = request.with_(uid=uid, src=self._twin, dst=(twin,), now=sent_at, err="")
        action = "here" if twin == self._twin else "send"
        return OutgoingRequest(action, one, request.ret, twin, left, one.failure(FULL_WORDS, now), self._hold(twin))

    async def _send(self, raw: bytes, requests: Sequence[OutgoingRequest]) -> None:
        """Store and send the requests made from *raw*."""
        for outgoing, (result, claim) in zip(requests, await self._store.dispatch(raw, requests), strict=False):
            if result == "accepted" and outgoing.action == "send":
                self._begin(claim)
            elif result != "accepted":
                self._journal.record_limited(FULL, names.BACKLOG, queue=names.BACKLOG, reason="too many requests are waiting for responses")

    def _problem(self, request: RelayMessage, now: float) -> str:
        """Return why a client's request cannot be sent; empty if it can."""
        if not request.cmd:
            return "cmd: missing or empty"
        if is_reserved(request.cmd):
            return "cmd: reserved for the relay itself"
        if not request.dst:
            return "dst: missing or empty; name the destination hosts"
        if request.exp > self._settings.max_expiry:
            return f"exp: {request.exp} s exceeds the maximum of {self._settings.max_expiry:g} s"
        if request.now and now > request.now + request.expiry_seconds + 1:
            return f"expired: the request is older than its exp of {request.expiry_seconds} s"
        return ""

    async def _deliver(self, raw: bytes, request: RelayMessage) -> None:
        """Deliver a request to a bus service, else to the applications of its command; respond with an error if neither works."""
        if is_reserved(request.cmd):
            await self.decline(raw, request, "cmd: reserved for the relay itself", names.REMOTE)
        elif self.services is None or not await self.services.take(raw, request):
            await self.hand_over(raw, request, names.REMOTE)

    async def hand_over(self, raw: bytes, request: RelayMessage, queue: str) -> None:
        """Deliver *request*, which is *raw* of *queue*, to the applications of its command; if their queue is full, decline it."""
        if await self._store.deliver(raw, request, queue) == "full":
            to = names.command_queue(request.cmd)
            self._journal.record_limited(FULL, to, queue=to, reason="no application fetches its messages")
            await self.decline(raw, request, f"host {self._twin} has too many unfetched requests for {request.cmd}", queue)

    async def decline(self, raw: bytes, request: RelayMessage, words: str, queue: str) -> None:
        """Respond to *request*, which is *raw* of *queue*, with an error."""
        await self.conclude(raw, request.with_(dst=(self._twin,)).failure(words, self._clock()), queue)

    async def conclude(self, raw: bytes, reply: RelayMessage, queue: str) -> None:
        """Respond with *reply* to the request that is *raw* of *queue*, in place of an application. Raises RedisUnavailableError."""
        if reply.dst[0] == self._twin:
            await self._settle(raw, reply, await self._store.waiting_request(reply.uid), queue)
        else:
            await self._respond(raw, reply, queue)

    async def _answer(self, raw: bytes, reply: RelayMessage) -> None:
        """Send a response to its host, or deliver it to the waiting client."""
        if not reply.uid and reply.ref:
            # A service of rmb-peer's form responds with the ref that it got, and without src.
            reply = reply.with_(uid=reply.ref, src=reply.src or self._twin)
        if len(reply.dst) != 1:
            raise InvalidMessageError("dst: a response must name one host, the one that sent the request")
        if reply.is_misaddressed_error and reply.src == self._twin:
            await self._redirect(raw, reply)
        elif reply.dst[0] == self._twin:
            await self._settle(raw, reply, await self._store.waiting_request(reply.uid), names.REPLY)
        elif reply.src != self._twin:
            raise InvalidMessageError(f"src: a response must name this host, {self._twin}: swap src and dst of the request")
        elif await self._respond(raw, reply, names.REPLY) == "unasked":
            self._forged("an application", f"host {reply.dst[0]} has not sent request {reply.uid[:40]}, or has its response")

    async def _redirect(self, raw: bytes, error: RelayMessage) -> None:
        """Send an error that names its own sender as its destination to the only host that can have sent the request."""
        asker = await self._store.asker(raw, error, names.REPLY)
        if asker in {"none", str(self._twin)}:
            await self._settle(raw, error, await self._store.waiting_request(error.uid), names.REPLY)
        elif asker.isdigit() and await self._respond(raw, error.with_(dst=(int(asker),)), names.REPLY) == "ready":
            await self._store.count("answers-redirected")

    async def _respond(self, raw: bytes, reply: RelayMessage, queue: str) -> str:
        """Send a response, made from *raw* of *queue*, to its host; return the result."""
        twin = reply.dst[0]
        result, claim = await self._store.respond(raw, reply, queue, self._left(reply), self._hold(twin))
        if result == "ready":
            self._begin(claim)
        return result

    def _hold(self, twin: int) -> float:
        """Return for how many seconds a message for *twin* is held."""
        return self.sender.hold_seconds(twin) if self.sender is not None else 0.0

    def _begin(self, claim: Claim | None) -> None:
        """Send a held message at once; wake the sender for others."""
        if claim is not None and self.sender is not None:
            self.sender.begin(claim)
        else:
            self._wake()

    async def _settle(self, raw: bytes, reply: RelayMessage, asked: RelayMessage | None, queue: str) -> None:
        """Deliver a response to the waiting client."""
        outcome = "failed" if reply.err else "answered"
        if asked is None:  # the script counts it as a duplicate or as unexpected
            asked = reply.with_(dst=(reply.src,), ret="", ref="", tag="")
        elif asked.dst != (reply.src,):
            self._forged("an application", f"response to {reply.uid} in the name of host {reply.src}, which did not receive the request")
            raise InvalidMessageError(f"src: host {reply.src} did not receive request {reply.uid[:40]}")
        reply = reply.with_(ref=asked.ref, tag=asked.tag)
        vetted = queue == names.REPLY and reply.src != self._twin
        result = await self._store.answer(asked, reply, outcome, raw=raw, queue=queue, vetted=vetted)
        self.report_undeliverable(result, asked.ret)
        if result == "forged":
            self._forged("an application", f"response to {reply.uid} that host {reply.src} did not send")

    def report_undeliverable(self, result: str, ret: str) -> None:
        """Log a response that could not be pushed to the return queue *ret*."""
        if result == "undeliverable":
            self._journal.record_limited(UNDELIVERED, ret, queue=ret)

    async def expire(self, most: int) -> int:
        """Respond to up to *most* expired requests; return how many there were."""
        requests = await self._store.expired(most)
        for request in requests:
            words = f"expired: no response within {request.expiry_seconds} s"
            self.report_undeliverable(await self._store.answer(request, request.failure(words, self._clock()), "expired"), request.ret)
        return len(requests)

    async def _discard(self, queue: str, raw: bytes, wrong: InvalidMessageError) -> None:
        """Discard a malformed message. If it names its client, respond with an error for each destination."""
        self._journal.record_limited(MALFORMED, queue, queue=queue, reason=str(wrong))
        answers: list[tuple[str, RelayMessage]] = []
        if queue == names.LOCAL and wrong.ret:
            now = int(self._clock())
            failed = RelayMessage(cmd=wrong.cmd, src=self._twin, now=now, ref=wrong.ref)
            answers = [(wrong.ret, failed.with_(dst=(twin,)).failure(str(wrong), now)) for twin in wrong.dst or (0,)]
        await self._store.discard(raw, queue, answers)

    def _left(self, reply: RelayMessage) -> float:
        """Return for how many seconds to keep sending a response: the longest time that its request could have waited."""
        return float(min(reply.expiry_seconds, self._settings.max_expiry))

    def _forged(self, whom: str, reason: str) -> None:
        """Log a response whose sender or content is not what it claims."""
        self._journal.record_limited(FORGED, whom, address=f"{whom} on this host", reason=printable(reason))
