"""Calls of local users to remote hosts: the service of ``relay/<twin>/<cmd>``. Spec: sbus-rpc(7) §9, sbus-relay(8).

Protection against users of this host:

1. *Bus rules cannot be bypassed.* The destination is the host in the key, to which rules apply, not the one in the envelope. Requests
   sent to the relay's own address are dropped, because that address would be a second key for the same call.
2. *Responses cannot be intercepted.* A response goes to the calling connection, which the bus identifies, and comes from the called host.
3. *The relay cannot be exhausted.* Each user has a maximum number of concurrent calls and of bytes in them, with all ids of that user.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from sbus.errors import ServiceError
from sbus.protocol.envelope import RELAY_HEAD, Envelope, call_digest, decode_data, destination_of
from sbus.rpc.requests import Request, Result, Task
from sbus.rpc.service import Dispatcher, Service
from sbus_services.relay.bus.client import ConcurrencyLimit
from sbus_services.relay.message_model import InvalidMessageError, RelayMessage
from sbus_services.relay.queue_handler import QueueHandler
from sbus_services.relay.redis.client import RedisUnavailableError

PATTERN = RELAY_HEAD + b"*/"
"""All commands of all hosts."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call in progress: its digest, and the future of its response."""

    digest: str
    reply: asyncio.Future[RelayMessage]


class OutgoingCalls(Dispatcher):
    """Accepts the calls of users and returns their responses."""

    is_cancellable = False
    """A request that has been sent to another host takes room there: a caller who cancels must not get room for another one here."""

    def __init__(self, handler: QueueHandler, ret: str, limit: ConcurrencyLimit, charged: Callable[[int], int]) -> None:
        """*ret* is the Redis list for responses; *limit* applies to each user that *charged* returns for a uid."""
        super().__init__(charged)
        self._handler = handler
        self._ret = ret
        self._limit = limit
        self._calls: dict[str, _Call] = {}

    def patterns(self, address: bytes) -> list[bytes]:
        """Return the subscriptions. The one below *address* serves nothing: it distinguishes a relay from a mere subscriber."""
        return [PATTERN, address + PATTERN]

    def find(self, key: bytes) -> tuple[str, Service | None]:
        """Return the command that a request with *key* must name, and a service for it if the key names a host."""
        destination = destination_of(key)
        return ("", None) if destination is None else (destination[1], Service(_not_yet))

    def judge(self, task: Task, problem: str | None, now: float) -> bytes:
        """Accept a request, unless its user has reached a limit."""
        destination = destination_of(task.key)
        if destination is None or task.envelope.destinations != (destination[0],):
            self.counts["malformed"] += 1
            return task.error(f"dst: must be exactly the host that the key names, {destination and destination[0]}")
        user, size = task.party[0], len(task.envelope.data)
        if limit := self._limit.problem(user, size):
            self.counts["busy"] += 1
            return task.error(f"busy: {limit} for user {user}; try again when some have completed")
        waiting = len(self.queue)
        packet = super().judge(replace(task, handler=partial(self._send, destination[0], task.envelope, user)), problem, now)
        if len(self.queue) > waiting:
            self._limit.acquire(user, size)
        return packet

    def next(self, now: float) -> tuple[Task | None, list[bytes]]:  # noqa: ARG002 - signature of the base class
        """Return the next request. Expired ones are included and fail when they are sent, so that every accepted request ends."""
        return self.queue.take(), []

    def digest_of(self, uid: str) -> str | None:
        """Return the digest of the call that became the request *uid*, None if there is none."""
        call = self._calls.get(uid)
        return call.digest if call else None

    def deliver(self, reply: RelayMessage) -> bool:
        """Deliver *reply* to its call; return False if no call waits for it."""
        call = self._calls.get(reply.uid)
        if call is None or call.reply.done():
            return False
        call.reply.set_result(reply)
        return True

    async def _send(self, twin: int, envelope: Envelope, user: int, request: Request) -> bytes:
        """Return the response of *twin* to a call that *user* is charged for.

        Raises ServiceError with the error of the remote host or of this relay.
        """
        message = RelayMessage(
            cmd=envelope.command,
            exp=envelope.expires_seconds,
            try_=envelope.tries,
            dat=base64.b64encode(envelope.data).decode("ascii"),
            dst=(twin,),
            ret=self._ret,
            now=envelope.sent_at,
            ctx=envelope.context,
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
        except RedisUnavailableError as error:
            raise ServiceError(f"relay unavailable: {error}; the call may have been sent") from None
        finally:
            self._calls.pop(uid, None)
            self._limit.release(user, len(envelope.data))
        if reply.err:
            raise ServiceError(reply.err)
        return decode_data(reply.dat)


def _not_yet(request: Request) -> Result:
    """Placeholder for a handler until judge() knows the host."""
    raise ServiceError(f"{request.command} was not sent")
