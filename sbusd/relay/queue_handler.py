"""What becomes of each message in the queues of client requests, remote requests and responses. Spec: sbus-relay(8), "Message flow".

Nothing here waits for another host. A message that is interrupted, by an error of Redis or the end of the process, is where it was,
and is dealt with again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sbusd.config.relay import RelaySettings
from sbusd.protocol.printable import printable
from sbusd.relay.log_messages import FORGED, FULL, MALFORMED, UNDELIVERED, RelayLog
from sbusd.relay.message_model import Message, MessageError, is_reserved
from sbusd.relay.redis import names
from sbusd.relay.redis.store import Claim, Order, Store

FULL_WORDS = "too many pending requests; try again later"

ABANDONED_WORDS = "the relay of host {twin} ended while a service there handled the request for {cmd}; it may have been run"


class LocalServices(Protocol):
    """The services of this host's bus."""

    async def take(self, raw: bytes, request: Message) -> bool:
        """See to *request*, which is *raw* of the queue of requests; return False where no service is there, and nothing was done."""


class Sends(Protocol):
    """What is on its way to other hosts."""

    def hold_seconds(self, twin: int) -> float:
        """Return for how many seconds a message for *twin* is to be held that is sent at once; 0: it has to wait for others."""

    def begin(self, claim: Claim) -> None:
        """Send what is held."""


class Desk:
    """Deals with messages, one at a time."""

    services: LocalServices | None = None
    """Who is asked first whether a request of another host is theirs."""

    sends: Sends | None = None
    """Who sends at once; without it everything is only woken for."""

    def __init__(
        self,
        twin: int,
        settings: RelaySettings,
        store: Store,
        journal: RelayLog,
        *,
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """*twin* is this host's; *wake* has sent soon what is not begun at once."""
        self._wake = wake
        self._twin = twin
        self._settings = settings
        self._store = store
        self._journal = journal
        self._clock = clock

    async def take(self, queue: str, raw: bytes) -> None:
        """Deal with *raw*, which was taken from *queue*. Raises RedisAwayError."""
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
        except MessageError as wrong:
            await self._discard(queue, raw, wrong)

    def _parse(self, raw: bytes, *, any_error: bool) -> Message:
        """Return the message that *raw* is, with *any_error* that of an application. Raises MessageError."""
        if len(raw) > self._settings.body_bytes:
            raise MessageError(f"the message has {len(raw)} bytes; the limit is {self._settings.body_bytes}")
        return Message.parse(raw, any_error=any_error)

    async def _dispatch(self, raw: bytes, request: Message) -> None:
        """Make one request for each destination of a client's."""
        now = self._clock()
        if problem := self._problem(request, now):
            raise MessageError(problem, request.ret, request.dst, request.cmd)
        if request.ret.startswith("msgbus."):
            raise MessageError("ret: names that begin with msgbus. are reserved; use a name of your own, such as a UUID")
        orders = [self._order(request, twin, await self.next_uid(twin), now) for twin in request.dst]
        await self._send(raw, orders)

    async def next_uid(self, twin: int) -> str:
        """Return the ``uid`` of the next request to *twin*. Raises RedisAwayError."""
        return f"{twin}.{await self._store.next_number(twin)}"

    async def call(self, request: Message, uid: str) -> None:
        """Send a call of the bus, to the one twin of its ``dst``, under *uid*. Its one answer comes into its ``ret``.

        Raises:
            MessageError: it cannot be sent.
            RedisAwayError: Redis does not answer; whether it was sent is unknown.
        """
        now = self._clock()
        size = len(request.encode())
        if size > self._settings.body_bytes:
            raise MessageError(f"the message has {size} bytes; the limit is {self._settings.body_bytes}")
        if problem := self._problem(request, now):
            raise MessageError(problem)
        await self._send(b"", [self._order(request, request.dst[0], uid, now)])

    def _order(self, request: Message, twin: int, uid: str, now: float) -> Order:
        """Return what is to become of *request* for *twin*."""
        sent_at = min(request.now, int(now)) or int(now)
        left = request.expiry_seconds + 1 - max(0.0, now - sent_at)
        one = request.with_(uid=uid, src=self._twin, dst=(twin,), now=sent_at, err="")
        what = "here" if twin == self._twin else "send"
        return Order(what, one, request.ret, twin, left, one.failure(FULL_WORDS, now), self._hold(twin))

    async def _send(self, raw: bytes, orders: Sequence[Order]) -> None:
        """Have the requests sent that *raw* has become."""
        for order, (said, claim) in zip(orders, await self._store.dispatch(raw, orders), strict=False):
            if said == "accepted" and order.what == "send":
                self._begin(claim)
            elif said != "accepted":
                self._journal.record_limited(FULL, names.BACKLOG, queue=names.BACKLOG, reason="too many requests are waiting for responses")

    def _problem(self, request: Message, now: float) -> str:
        """Return why a client's request cannot be sent, or no words."""
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

    async def _deliver(self, raw: bytes, request: Message) -> None:
        """Hand a request to a service of the bus, else to the applications of its command; if that cannot be, answer."""
        if is_reserved(request.cmd):
            await self.decline(raw, request, "cmd: reserved for the relay itself", names.REMOTE)
        elif self.services is None or not await self.services.take(raw, request):
            await self.hand_over(raw, request, names.REMOTE)

    async def hand_over(self, raw: bytes, request: Message, queue: str) -> None:
        """Hand *request*, which is *raw* of *queue*, to the applications of its command; if there is no room, answer."""
        if await self._store.deliver(raw, request, queue) == "full":
            to = names.command_queue(request.cmd)
            self._journal.record_limited(FULL, to, queue=to, reason="no application fetches its messages")
            await self.decline(raw, request, f"host {self._twin} has too many unfetched requests for {request.cmd}", queue)

    async def decline(self, raw: bytes, request: Message, words: str, queue: str) -> None:
        """Answer *request*, which is *raw* of *queue*, with an error."""
        await self.conclude(raw, request.with_(dst=(self._twin,)).failure(words, self._clock()), queue)

    async def conclude(self, raw: bytes, reply: Message, queue: str) -> None:
        """Answer the request that is *raw* of *queue* with *reply*, in the place of an application. Raises RedisAwayError."""
        if reply.dst[0] == self._twin:
            await self._settle(raw, reply, await self._store.waiting_request(reply.uid), queue)
        else:
            await self._respond(raw, reply, queue)

    async def _answer(self, raw: bytes, reply: Message) -> None:
        """Send an answer to its host, or hand it to the client that waits."""
        if len(reply.dst) != 1:
            raise MessageError("dst: a response must name one host, the one that sent the request")
        if reply.is_misaddressed_error and reply.src == self._twin:
            await self._redirect(raw, reply)
        elif reply.dst[0] == self._twin:
            await self._settle(raw, reply, await self._store.waiting_request(reply.uid), names.REPLY)
        elif reply.src != self._twin:
            raise MessageError(f"src: a response must name this host, {self._twin}: swap src and dst of the request")
        elif await self._respond(raw, reply, names.REPLY) == "unasked":
            self._forged("an application", f"host {reply.dst[0]} has not sent request {reply.uid[:40]}, or has its response")

    async def _redirect(self, raw: bytes, error: Message) -> None:
        """Send an error that names its own sender as the asker to the one twin that can have asked."""
        asker = await self._store.asker(raw, error, names.REPLY)
        if asker in {"none", str(self._twin)}:
            await self._settle(raw, error, await self._store.waiting_request(error.uid), names.REPLY)
        elif asker.isdigit() and await self._respond(raw, error.with_(dst=(int(asker),)), names.REPLY) == "ready":
            await self._store.count("answers-redirected")

    async def _respond(self, raw: bytes, reply: Message, queue: str) -> str:
        """Send an answer, which is what *raw* of *queue* became, to its host; return what became of it."""
        twin = reply.dst[0]
        said, claim = await self._store.respond(raw, reply, queue, self._left(reply), self._hold(twin))
        if said == "ready":
            self._begin(claim)
        return said

    def _hold(self, twin: int) -> float:
        """Return for how many seconds a message for *twin* is held."""
        return self.sends.hold_seconds(twin) if self.sends is not None else 0.0

    def _begin(self, claim: Claim | None) -> None:
        """Send what is held at once, and what is not when it is due."""
        if claim is not None and self.sends is not None:
            self.sends.begin(claim)
        else:
            self._wake()

    async def _settle(self, raw: bytes, reply: Message, asked: Message | None, queue: str) -> None:
        """Hand an answer to the client that waits for it."""
        outcome = "failed" if reply.err else "answered"
        if asked is None:  # the script counts which it is: a copy, or nothing that was asked
            asked = reply.with_(dst=(reply.src,), ret="")
        elif asked.dst != (reply.src,):
            self._forged("an application", f"response to {reply.uid} in the name of host {reply.src}, which did not receive the request")
            raise MessageError(f"src: host {reply.src} did not receive request {reply.uid[:40]}")
        vetted = queue == names.REPLY and reply.src != self._twin
        said = await self._store.answer(asked, reply, outcome, raw=raw, queue=queue, vetted=vetted)
        self.told(said, asked.ret)
        if said == "forged":
            self._forged("an application", f"response to {reply.uid} that host {reply.src} did not send")

    def told(self, said: str, ret: str) -> None:
        """Tell if an answer could not be put into the return queue *ret*."""
        if said == "undeliverable":
            self._journal.record_limited(UNDELIVERED, ret, queue=ret)

    async def expire(self, most: int) -> int:
        """Answer up to *most* requests whose time is over; return how many there were."""
        requests = await self._store.expired(most)
        for request in requests:
            words = f"expired: no response within {request.expiry_seconds} s"
            self.told(await self._store.answer(request, request.failure(words, self._clock()), "expired"), request.ret)
        return len(requests)

    async def _discard(self, queue: str, raw: bytes, wrong: MessageError) -> None:
        """Be done with what is no message: its client is told, if it says who that is, once for each destination."""
        self._journal.record_limited(MALFORMED, queue, queue=queue, reason=str(wrong))
        answers: list[tuple[str, Message]] = []
        if queue == names.LOCAL and wrong.ret:
            now = int(self._clock())
            failed = Message(cmd=wrong.cmd, src=self._twin, now=now)
            answers = [(wrong.ret, failed.with_(dst=(twin,)).failure(str(wrong), now)) for twin in wrong.dst or (0,)]
        await self._store.discard(raw, queue, answers)

    def _left(self, reply: Message) -> float:
        """Return for how many seconds an answer is worth sending: as long as its request could have waited at most."""
        return float(min(reply.expiry_seconds, self._settings.max_expiry))

    def _forged(self, whom: str, reason: str) -> None:
        """Tell of an answer that is not what it says."""
        self._journal.record_limited(FORGED, whom, address=f"{whom} on this host", reason=printable(reason))
