"""The state of every message in Redis, and the atomic transitions between states.

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

While there is capacity, a relay holds a message from the start and sends it without a separate claim, because each transition is a write
to Redis's disk. Messages taken by a relay are in a list of its own; if it dies, another relay returns them (:meth:`MessageStore.live`).
Requests that it had passed to a bus service are not run again, because it is unknown whether they ran: the response is an error. A
transition has no effect unless its message is in the expected state, so a relay that was merely slow does no harm. Spec: sbus-relay(8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sbus_programs.config.relay import RelaySettings
from sbus_services.relay.message_model import RelayMessage
from sbus_services.relay.redis import names
from sbus_services.relay.redis.client import Argument, RedisClient

MAX_REFUSED = 1_000
"""Maximum number of malformed messages kept for inspection."""

WAIT_SECONDS = 1
"""Timeout of waiting for a first message, and so the delay until messages of an interrupted take are found."""


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A client's request for one destination, and what to do with it."""

    action: str
    """``send``, ``here``, or ``fail``."""
    message: RelayMessage
    """The request as stored in the backlog; for ``fail`` the error response."""
    ret: str
    twin: int
    seconds_left: float
    full: RelayMessage
    """The error response if a limit is reached."""
    hold_seconds: float = 0.0
    """For how long this relay holds it to send it at once; 0: any relay claims it."""

    def arguments(self) -> tuple[Argument, ...]:
        """Return the arguments for the script."""
        here = self.message.with_(ret=names.REPLY, ref=self.message.uid).encode() if self.action == "here" else b""
        message = self.message
        return (
            self.action,
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
    """A message that this relay may send until its token expires."""

    id: str
    token: bytes
    body: bytes
    tries: int
    """Retries that are left."""
    attempt: int
    """Number of this attempt, from 1."""
    twin: int

    @property
    def is_request(self) -> bool:
        """Whether it is a request; else a response."""
        return self.id.startswith("q:")


@dataclass(frozen=True, slots=True)
class Nonce:
    """The nonce of a signed message, which is accepted once."""

    twin: int
    nonce: str
    seconds: float
    """For how long it is remembered."""


class MessageStore:
    """The states of all messages. Every method raises RedisUnavailableError; its effect is then unknown, and repeating the call is safe."""

    def __init__(self, redis: RedisClient, settings: RelaySettings, relay: str) -> None:
        """*relay* is a unique name of this process, never used before on this Redis."""
        self.relay = relay
        self._redis = redis
        self._settings = settings
        self._lifetime = math.ceil(settings.answer_lifetime)

    async def live(self) -> int:
        """Renew the lease of this relay; return how many messages of dead relays went back to their queues."""
        return int(await self._redis.script("live", self.relay, int(self._settings.lease * 1_000), *names.QUEUES))

    async def take(self, queue: str, most: int) -> list[bytes]:
        """Return up to *most* messages of *queue*; wait for the first. Taken but unprocessed messages come first."""
        taken = names.taken(self.relay, queue)
        raws: list[bytes] = await self._redis.script("take", queue, taken, most, self.relay)
        if raws:
            return raws
        first = await self._redis.command("BLMOVE", queue, taken, "LEFT", "RIGHT", WAIT_SECONDS)
        return [] if first is None else [first]

    async def next_number(self, twin: int) -> int:
        """Return the number of the next request to *twin*; it is never returned again."""
        return int(await self._redis.command("INCR", names.counter(twin)))

    async def dispatch(self, raw: bytes, requests: Sequence[OutgoingRequest]) -> list[tuple[str, Claim | None]]:
        """Turn the client's request *raw* into *requests*; return the result of each, and the claim of a message to send at once.

        Returns an empty list if another relay has taken *raw* over. An empty *raw* is for bus calls, which were in no queue.
        """
        settings = self._settings
        taken = self._taken(names.LOCAL) if raw else ""
        bounds = (settings.backlog_messages, settings.queue_messages, self._lifetime, settings.peer_memory, settings.max_expiry)
        head = (taken, raw, *bounds)
        result = await self._redis.script("dispatch", *head, *(each for outgoing in requests for each in outgoing.arguments()))
        return [
            (
                str(word, "ascii"),
                Claim(f"q:{outgoing.message.uid}", token, outgoing.message.encode(), outgoing.message.try_, 1, outgoing.twin)
                if token
                else None,
            )
            for outgoing, (word, token) in zip(requests, result, strict=False)
        ]

    async def waiting_request(self, uid: str) -> RelayMessage | None:
        """Return the local request *uid* that waits for a response, None if there is none."""
        body = await self._redis.command("HGET", names.BACKLOG, uid)
        return None if body is None else RelayMessage.parse(body)

    async def asker(self, raw: bytes, error: RelayMessage, queue: str) -> str:
        """Return the number of the only host that can have sent the request that failed with *error*, which does not name it.

        *error* is *raw* of *queue*. Other results: ``none``; ``ambiguous``: several hosts are possible, and the error is dropped; ``lost``:
        another relay has taken *raw* over.
        """
        return await self._result("asker", self._taken(queue), raw, error.uid, error.cmd)

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
        """Deliver the only response to *request*: ``answered``, ``unwanted``, ``undeliverable``, ``late``, ``lost`` or ``forged``.

        This completes *raw*, taken from *queue*; *token* is that of a failed attempt. With *vetted*, *raw* must be exactly what the
        remote host sent, because local applications can write to the same queue.
        """
        taken = self._taken(queue) if queue else ""
        body = reply.with_(ret=request.ret).encode()
        settings = self._settings
        bounds = (settings.queue_messages, self._lifetime)
        return await self._result(
            "answer", taken, raw, request.uid, request.dst[0], body, request.ret, *bounds, outcome, token, int(vetted)
        )

    async def deliver(self, raw: bytes, request: RelayMessage, queue: str) -> str:
        """Push *request* to the queue of its command: ``delivered``, ``full``, ``lost``, or ``late`` if it has expired."""
        to = names.command_queue(request.cmd)
        return await self._result("deliver", self._taken(queue), raw, to, self._settings.queue_messages, request.src, request.uid)

    async def engage(self, raw: bytes, request: RelayMessage) -> tuple[str, float]:
        """Take *request* for a bus service: ``engaged`` with the seconds until it expires, ``lost``, or ``late``. Safe to repeat."""
        taken, bus = self._taken(names.REMOTE), self._taken(names.BUS)
        result, left = await self._redis.script("engage", taken, bus, raw, request.src, request.uid)
        return str(result, "ascii"), float(left)

    async def take_answers(self, most: int) -> list[bytes]:
        """Return up to *most* responses to bus calls; wait for the first. Duty: call :meth:`answered` for them."""
        return await self.take(names.answers(self.relay), most)

    async def answered(self, number: int) -> None:
        """Remove the first *number* of the taken responses."""
        await self._redis.command("LPOP", self._taken(names.answers(self.relay)), number)

    async def respond(
        self, raw: bytes, reply: RelayMessage, queue: str, seconds_left: float, hold_seconds: float = 0.0
    ) -> tuple[str, Claim | None]:
        """Send *reply*, made from *raw* of *queue*, to its host: ``ready``, ``unasked`` or ``lost``.

        With *hold_seconds* this relay holds it to send it at once, and the claim is returned.
        """
        twin, body = reply.dst[0], reply.encode()
        word, token = await self._redis.script("respond", self._taken(queue), raw, reply.uid, twin, body, seconds_left, hold_seconds)
        return str(word, "ascii"), Claim(f"r:{twin}:{reply.uid}", token, body, 0, 1, twin) if token else None

    async def discard(self, raw: bytes, queue: str, answers: Sequence[tuple[str, RelayMessage]] = ()) -> str:
        """Discard the malformed message *raw*: ``answered``, ``kept`` for inspection, or ``gone``."""
        flat = (each for ret, message in answers for each in (ret, message.with_(ret=ret).encode()))
        return await self._result("discard", self._taken(queue), raw, MAX_REFUSED, self._settings.queue_messages, self._lifetime, *flat)

    async def twins(self) -> list[int]:
        """Return the hosts with waiting messages."""
        return [int(each) for each in await self._redis.command("SMEMBERS", names.TWINS)]

    async def claim(self, twin: int, most: int, seconds: float) -> tuple[float, list[Claim]]:
        """Claim up to *most* due messages for *twin* for *seconds*; also return the seconds until the next is due, -1 if there is none."""
        due, found = await self._redis.script("claim", twin, most, seconds)
        claims = [Claim(id_.decode(), token, body, int(tries), int(attempt), twin) for id_, token, body, tries, attempt in found]
        return float(due), claims

    async def sent(self, claim: Claim) -> str:
        """Record that the remote host has stored the message."""
        counted = "requests-sent" if claim.is_request else "answers-sent"
        return await self._result("sent", claim.id, claim.twin, claim.token, counted)

    async def postpone(self, claim: Claim, reason: str) -> str:
        """Schedule another attempt after the interval: ``postponed``, ``exhausted`` or ``lost``."""
        interval = self._settings.retry_interval
        return await self._result("postpone", claim.id, claim.twin, claim.token, interval, reason, int(claim.is_request))

    async def drop(self, claim: Claim, counted: str) -> str:
        """Drop a response that its host does not accept."""
        return await self._result("drop", claim.id, claim.twin, claim.token, counted)

    async def accept(self, twin: int, request: RelayMessage, digest: str, seconds_left: float, nonce: Nonce | None = None) -> str:
        """Store the request of a remote host: ``accepted``, ``repeated``, or the exceeded limit: ``queue``, ``open``, ``memory``.

        ``replayed`` if *nonce* was used before.
        """
        settings = self._settings
        bounds = (settings.queue_messages, settings.peer_requests, settings.peer_memory)
        head = (twin, request.uid, digest, seconds_left, request.encode())
        return await self._result("accept", *head, *bounds, *_signed_with(nonce), request.cmd, settings.max_expiry)

    async def admit(self, reply: RelayMessage, nonce: Nonce | None = None) -> str:
        """Store the response of a remote host: ``accepted``, ``repeated``, ``unasked``, or ``queue`` if that is full.

        ``forged`` if the request went to another host, ``replayed`` if *nonce* was used before.
        """
        return await self._result("admit", reply.uid, reply.encode(), self._settings.queue_messages, reply.src, *_signed_with(nonce))

    async def expired(self, most: int) -> list[RelayMessage]:
        """Return up to *most* expired local requests."""
        return [RelayMessage.parse(body) for body in await self._redis.script("expired", most)]

    async def hasten(self, most: int) -> int:
        """Make waiting messages due now, up to *most* for each host; return how many."""
        return int(await self._redis.script("hasten", most))

    async def count(self, name: str, number: int = 1) -> None:
        """Add *number* to the counter *name*."""
        await self._redis.command("HINCRBY", names.COUNTERS, name, number)

    def _taken(self, queue: str) -> str:
        """Return the list of messages that this relay has taken from *queue*."""
        return names.taken(self.relay, queue)

    async def _result(self, script: str, *arguments: Argument) -> str:
        """Run a script whose result is one word."""
        return str(await self._redis.script(script, *arguments), "ascii")


def _signed_with(nonce: Nonce | None) -> tuple[str, int]:
    """Return the script arguments for *nonce*."""
    return ("", 0) if nonce is None else (names.nonce(nonce.twin, nonce.nonce), math.ceil(nonce.seconds))
