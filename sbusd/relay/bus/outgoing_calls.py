"""Calls of the bus's users to other hosts: the service of ``relay/<twin>/<cmd>``. Spec: sbus-rpc(7) §9, sbus-relay(8).

What a user of this host cannot do:

1. *Reach a host that the bus's rules close to it.* The host is that of the key, which rules are about, and not of the envelope; and what
   is sent to the relay's own address is dropped: it would be a second key for the same call.
2. *Take another's answer.* It goes to the connection that called, as the bus named it; and it came from the host that was asked.
3. *Use up the relay.* Each user has a bounded number of calls under way, and of bytes in them.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from sbusd.client.rpc.service import Reception, Request, Result, Service, ServiceError, Task
from sbusd.protocol.envelope import RELAY_HEAD, Envelope, call_digest, decode_data, destination_of
from sbusd.relay.concurrency_limit import ConcurrencyLimit
from sbusd.relay.message_model import InvalidMessageError, RelayMessage
from sbusd.relay.queue_handler import QueueHandler
from sbusd.relay.redis.client import RedisUnavailableError

PATTERN = RELAY_HEAD + b"*/"
"""All commands of all twins."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that is under way: its digest, and where its answer is waited for."""

    digest: str
    reply: asyncio.Future[RelayMessage]


class OutgoingCalls(Reception):
    """Takes the calls of users, and hands them their answers."""

    def __init__(self, read_envelope: Callable[[bytes], Envelope], handler: QueueHandler, ret: str, limit: ConcurrencyLimit) -> None:
        """*ret* is the list in Redis that answers come into; *limit* holds for each user."""
        super().__init__(read_envelope)
        self._handler = handler
        self._ret = ret
        self._limit = limit
        self._calls: dict[str, _Call] = {}

    def patterns(self, address: bytes) -> list[bytes]:
        """Return what to subscribe to. Below its *address* nothing is served: that it listens there tells it from a mere listener."""
        return [PATTERN, address + PATTERN]

    def find(self, key: bytes) -> tuple[str, Service | None]:
        """Return the command that a request under *key* must name, and that it is served, if the key names a twin."""
        destination = destination_of(key)
        return ("", None) if destination is None else (destination[1], Service(_not_yet))

    def judge(self, task: Task, problem: str, now: float) -> bytes:
        """Have a request sent, unless its user has too much under way."""
        destination = destination_of(task.key)
        if destination is None or task.envelope.destinations != (destination[0],):
            self.counts["malformed"] += 1
            return task.error(f"dst: must be exactly the host that the key names, {destination and destination[0]}")
        user, size = task.request.caller.uid, len(task.envelope.data)
        if crowded := self._limit.problem(user, size):
            self.counts["busy"] += 1
            return task.error(f"busy: {crowded} for user {user}; try again when some have completed")
        waiting = len(self.docket)
        packet = super().judge(replace(task, handler=partial(self._send, destination[0], task.envelope)), problem, now)
        if len(self.docket) > waiting:
            self._limit.acquire(user, size)
        return packet

    def next(self, now: float) -> tuple[Task | None, list[bytes]]:  # noqa: ARG002 - what it replaces needs it
        """Return the next request. One that has expired meanwhile is refused where it is sent, so that each that was let in is run."""
        return self.docket.take(), []

    def digest_of(self, uid: str) -> str | None:
        """Return the digest of the call that became the request *uid*, None if there is none."""
        call = self._calls.get(uid)
        return call.digest if call else None

    def deliver(self, reply: RelayMessage) -> bool:
        """Hand *reply* to the call that it is for; return False if nobody waits for it."""
        call = self._calls.get(reply.uid)
        if call is None or call.reply.done():
            return False
        call.reply.set_result(reply)
        return True

    async def _send(self, twin: int, envelope: Envelope, request: Request) -> bytes:
        """Return what *twin* answers. Raises ServiceError with the words of its error, or of this relay's."""
        user, size = request.caller.uid, len(envelope.data)
        message = RelayMessage(
            cmd=envelope.command,
            exp=envelope.expires_seconds,
            try_=envelope.tries,
            dat=base64.b64encode(envelope.data).decode("ascii"),
            dst=(twin,),
            ret=self._ret,
            now=envelope.sent_at,
        )
        digest = call_digest(request.caller.connection, envelope.reply_to.encode(), envelope.uid)
        call = _Call(digest, asyncio.get_running_loop().create_future())
        uid = ""
        try:
            uid = await self._handler.next_uid(twin)
            self._calls[uid] = call
            await self._handler.call(message, uid)
            reply = await call.reply
        except InvalidMessageError as wrong:
            raise ServiceError(str(wrong)) from None
        except RedisUnavailableError as away:
            raise ServiceError(f"relay unavailable: {away}; the call may have been sent") from None
        finally:
            self._calls.pop(uid, None)
            self._limit.release(user, size)
        if reply.err:
            raise ServiceError(reply.err)
        return decode_data(reply.dat)


def _not_yet(request: Request) -> Result:
    """Stand in for a handler until the twin is known, in judge()."""
    raise ServiceError(f"{request.command} was not sent")
