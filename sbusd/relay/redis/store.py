"""Where every message is until it is done: Redis, and the changes from one state to the next, each of them atomic.

::

    local ──take──▶ taken ──dispatch──▶ backlog + retry:<twin> ──claim──▶ sending:<twin> ──sent──▶ backlog
                                             ▲                              │ postpone, or the relay died
                                             └──────────────────────────────┘
    POST /zbus-remote ──accept──▶ remote ──take──▶ taken ──deliver──▶ msgbus.<cmd>      (the application)
                                                     └──engage──▶ bus (its service) ──respond──▶ retry:<twin>
                                                                   └──the relay died──▶ abandoned
    the bus ──submit──▶ backlog + retry:<twin>
    reply ──take──▶ taken ──respond──▶ retry:<twin> ──claim──▶ sending ──sent──▶ done
    POST /zbus-reply ──admit──▶ reply ──take──▶ taken ──answer──▶ ret, and the backlog forgets it

Where there is room, what is to be sent is held by who sends it from the beginning, and does not wait to be claimed: each change is a
write on Redis's disk. What a relay has taken lies in a list of its own; if it dies, another gives that back (:meth:`Store.live`). What
it had given to a service of the bus is not given to one again, for nobody knows whether that ran it: it is answered with an error. A
change finds its message where it must be, or does nothing: so a relay that was only slow does no harm when it goes on.
Spec: sbus-relay(8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sbusd.config.relay import RelaySettings
from sbusd.relay.message_model import RelayMessage
from sbusd.relay.redis import names
from sbusd.relay.redis.client import Argument, RedisClient

MAX_REFUSED = 1_000
"""Messages that are none and are kept for a person: who looks at a thousand has understood."""

WAIT_SECONDS = 1
"""How long taking waits for a first message, so that what an interrupted one left behind is found as soon."""


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """What is to become of a client's request for one destination."""

    what: str
    """``send``, ``here``, or ``fail``."""
    message: RelayMessage
    """The request for that destination, as the backlog has it; for ``fail`` the answer."""
    ret: str
    twin: int
    seconds_left: float
    full: RelayMessage
    """The answer if there is no room."""
    hold_seconds: float = 0.0
    """For how long it is held to be sent at once; 0: whoever claims it sends it."""

    def arguments(self) -> tuple[Argument, ...]:
        """Return it as the script takes it."""
        here = self.message.with_(ret=names.REPLY).encode() if self.what == "here" else b""
        message = self.message
        return (
            self.what,
            message.uid,
            self.twin,
            self.ret,
            message.encode(),
            message.try_,
            self.seconds_left,
            self.full.encode(),
            here,
            self.hold_seconds,
            message.cmd,
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """A message that is ours to send, until its token is over."""

    id: str
    token: bytes
    body: bytes
    tries: int
    """Retries that are left."""
    attempt: int
    """Which attempt this is, from 1."""
    twin: int

    @property
    def is_request(self) -> bool:
        """Whether it is a request; else an answer."""
        return self.id.startswith("q:")


@dataclass(frozen=True, slots=True)
class Nonce:
    """What a message was signed with, so that it is taken once."""

    twin: int
    nonce: str
    seconds: float
    """For how long it is remembered."""


class Store:
    """The states of all messages. Every method raises RedisAwayError; then whether it was done is unknown, and doing it again is safe."""

    def __init__(self, redis: RedisClient, settings: RelaySettings, relay: str) -> None:
        """*relay* names this process among those that share the Redis, and none before it."""
        self.relay = relay
        self._redis = redis
        self._settings = settings
        self._lifetime = math.ceil(settings.answer_lifetime)

    async def live(self) -> int:
        """Say that this relay lives; return how many messages of dead ones went back to their queues."""
        return int(await self._redis.script("live", self.relay, int(self._settings.lease * 1_000), *names.QUEUES))

    async def take(self, queue: str, most: int) -> list[bytes]:
        """Return up to *most* messages of *queue*; waits for the first. What was taken before and not dealt with comes first."""
        taken = names.taken(self.relay, queue)
        raws: list[bytes] = await self._redis.script("take", queue, taken, most, self.relay)
        if raws:
            return raws
        first = await self._redis.command("BLMOVE", queue, taken, "LEFT", "RIGHT", WAIT_SECONDS)
        return [] if first is None else [first]

    async def next_number(self, twin: int) -> int:
        """Return the number of the next request to *twin*: no other ever has it."""
        return int(await self._redis.command("INCR", names.counter(twin)))

    async def dispatch(self, raw: bytes, orders: Sequence[OutgoingRequest]) -> list[tuple[str, Claim | None]]:
        """Turn the client's request *raw* into *orders*; return what became of each, nothing if another relay has it.

        With it comes what is ours to send at once.

        Without *raw* they are calls of the bus, which were in no queue.
        """
        settings = self._settings
        taken = self._taken(names.LOCAL) if raw else ""
        bounds = (settings.backlog_messages, settings.queue_messages, self._lifetime, settings.peer_memory, settings.max_expiry)
        head = (taken, raw, *bounds)
        said = await self._redis.script("dispatch", *head, *(each for order in orders for each in order.arguments()))
        return [
            (
                str(word, "ascii"),
                Claim(f"q:{order.message.uid}", token, order.message.encode(), order.message.try_, 1, order.twin) if token else None,
            )
            for order, (word, token) in zip(orders, said, strict=False)
        ]

    async def waiting_request(self, uid: str) -> RelayMessage | None:
        """Return the request *uid* of this host that waits for an answer, None if there is none."""
        body = await self._redis.command("HGET", names.BACKLOG, uid)
        return None if body is None else RelayMessage.parse(body)

    async def asker(self, raw: bytes, error: RelayMessage, queue: str) -> str:
        """Return the number of the one twin that *error*, which is *raw* of *queue* and does not name its asker, is for; else ``none``.

        ``ambiguous``: more than one twin could have asked, and the error is dropped. ``lost``: another relay has it.
        """
        return await self._said("asker", self._taken(queue), raw, error.uid, error.cmd)

    async def answer(
        self,
        request: RelayMessage,
        reply: RelayMessage,
        outcome: str,
        *,
        raw: bytes = b"",
        queue: str = "",
        token: bytes = b"",
        vetted: bool = False,
    ) -> str:
        """Give the client of *request* its one answer: ``answered``, ``unwanted``, ``undeliverable``, ``late``, ``lost`` or ``forged``.

        *raw*, taken from *queue*, is done with by this; *token* is of a try that failed. *vetted* says that *raw* has to be what the
        other host sent: an application of this host may write into the same queue.
        """
        taken = self._taken(queue) if queue else ""
        told = reply.with_(ret=request.ret).encode()
        settings = self._settings
        bounds = (settings.queue_messages, self._lifetime)
        return await self._said("answer", taken, raw, request.uid, request.dst[0], told, request.ret, *bounds, outcome, token, int(vetted))

    async def deliver(self, raw: bytes, request: RelayMessage, queue: str) -> str:
        """Hand *request* to the applications of its command: ``delivered``, ``full``, or ``lost``; ``late`` if nobody waits for it."""
        to = names.command_queue(request.cmd)
        return await self._said("deliver", self._taken(queue), raw, to, self._settings.queue_messages, request.src, request.uid)

    async def engage(self, raw: bytes, request: RelayMessage) -> tuple[str, float]:
        """Take *request* for a service of the bus: ``engaged`` and for how many seconds it is waited for, or ``lost``, or ``late``.

        It is safe to ask again whether it was done.
        """
        taken, bus = self._taken(names.REMOTE), self._taken(names.BUS)
        said, left = await self._redis.script("engage", taken, bus, raw, request.src, request.uid)
        return str(said, "ascii"), float(left)

    async def take_answers(self, most: int) -> list[bytes]:
        """Return up to *most* answers to calls that came over the bus; waits for the first. Duty: :meth:`answered` them."""
        return await self.take(names.answers(self.relay), most)

    async def answered(self, number: int) -> None:
        """Be done with so many answers, the first of those that were taken."""
        await self._redis.command("LPOP", self._taken(names.answers(self.relay)), number)

    async def respond(
        self, raw: bytes, reply: RelayMessage, queue: str, seconds_left: float, hold_seconds: float = 0.0
    ) -> tuple[str, Claim | None]:
        """Send *reply*, which is what *raw* of *queue* became, to its host: ``ready``, ``unasked`` or ``lost``.

        With *hold_seconds* it is ours to send at once, and comes with that.
        """
        twin, body = reply.dst[0], reply.encode()
        word, token = await self._redis.script("respond", self._taken(queue), raw, reply.uid, twin, body, seconds_left, hold_seconds)
        return str(word, "ascii"), Claim(f"r:{twin}:{reply.uid}", token, body, 0, 1, twin) if token else None

    async def discard(self, raw: bytes, queue: str, answers: Sequence[tuple[str, RelayMessage]] = ()) -> str:
        """Be done with *raw*, which is no message: ``answered``, ``kept`` for a person, or ``gone``."""
        flat = (each for ret, message in answers for each in (ret, message.with_(ret=ret).encode()))
        return await self._said("discard", self._taken(queue), raw, MAX_REFUSED, self._settings.queue_messages, self._lifetime, *flat)

    async def twins(self) -> list[int]:
        """Return the twins that messages wait for."""
        return [int(each) for each in await self._redis.command("SMEMBERS", names.TWINS)]

    async def claim(self, twin: int, most: int, seconds: float) -> tuple[float, list[Claim]]:
        """Return up to *most* messages for *twin* that are due, ours for *seconds*; and when the next is due, -1 if there is none."""
        due, found = await self._redis.script("claim", twin, most, seconds)
        claims = [Claim(id_.decode(), token, body, int(tries), int(attempt), twin) for id_, token, body, tries, attempt in found]
        return float(due), claims

    async def sent(self, claim: Claim) -> str:
        """Note that the other host has it."""
        counted = "requests-sent" if claim.is_request else "answers-sent"
        return await self._said("sent", claim.id, claim.twin, claim.token, counted)

    async def postpone(self, claim: Claim, reason: str) -> str:
        """Try again after the interval: ``postponed``, ``exhausted`` or ``lost``."""
        interval = self._settings.retry_interval
        return await self._said("postpone", claim.id, claim.twin, claim.token, interval, reason, int(claim.is_request))

    async def drop(self, claim: Claim, counted: str) -> str:
        """Be done with an answer that its host does not take."""
        return await self._said("drop", claim.id, claim.twin, claim.token, counted)

    async def accept(self, twin: int, request: RelayMessage, digest: str, seconds_left: float, nonce: Nonce | None = None) -> str:
        """Take the request of another host: ``accepted``, ``repeated``, or what is full: ``queue``, ``open``, ``memory``.

        ``replayed`` if *nonce* was used before.
        """
        settings = self._settings
        bounds = (settings.queue_messages, settings.peer_requests, settings.peer_memory)
        head = (twin, request.uid, digest, seconds_left, request.encode())
        return await self._said("accept", *head, *bounds, *_signed_with(nonce), request.cmd, settings.max_expiry)

    async def admit(self, reply: RelayMessage, nonce: Nonce | None = None) -> str:
        """Take the answer of another host: ``accepted``, ``repeated``, ``unasked``, or ``queue`` if that is full.

        ``forged`` if another twin was asked, ``replayed`` if *nonce* was used before.
        """
        return await self._said("admit", reply.uid, reply.encode(), self._settings.queue_messages, reply.src, *_signed_with(nonce))

    async def expired(self, most: int) -> list[RelayMessage]:
        """Return up to *most* requests of this host whose time is over."""
        return [RelayMessage.parse(body) for body in await self._redis.script("expired", most)]

    async def hasten(self, most: int) -> int:
        """Let what waits for another try be due now, *most* for each twin; return how many did."""
        return int(await self._redis.script("hasten", most))

    async def count(self, name: str, number: int = 1) -> None:
        """Count *name*."""
        await self._redis.command("HINCRBY", names.COUNTERS, name, number)

    def _taken(self, queue: str) -> str:
        """Return the list of what this relay has taken from *queue*."""
        return names.taken(self.relay, queue)

    async def _said(self, script: str, *arguments: Argument) -> str:
        """Run a script that says one word."""
        return str(await self._redis.script(script, *arguments), "ascii")


def _signed_with(nonce: Nonce | None) -> tuple[str, int]:
    """Return *nonce* as the scripts take it."""
    return ("", 0) if nonce is None else (names.nonce(nonce.twin, nonce.nonce), math.ceil(nonce.seconds))
