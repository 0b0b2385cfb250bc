"""The store of a relay in a real Redis, for tests that replace the rest of the relay."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from sbus_programs.config.relay import RelaySettings
from sbus_services.relay.message_model import RelayMessage
from sbus_services.relay.redis import names
from sbus_services.relay.redis.client import RedisClient
from sbus_services.relay.redis.store import MessageStore, OutgoingRequest
from tests.support.bus_hosts import FIRST, SECOND
from tests.support.relays import WAIT_SECONDS, RedisServer


@contextlib.asynccontextmanager
async def opened(server: RedisServer, **settings: Any) -> AsyncIterator[MessageStore]:
    """Open the store of a new relay at *server*."""
    link = RedisClient(str(server.path))
    try:
        yield MessageStore(link, RelaySettings(twin=FIRST, **settings), uuid.uuid4().hex)
    finally:
        await link.close()


def run_with(server: RedisServer, body: Callable[[MessageStore, Any], Awaitable[None]], **settings: Any) -> None:
    """Run *body* with a store and a client of its Redis."""

    async def run() -> None:
        async with opened(server, **settings) as store, asyncio.timeout(WAIT_SECONDS):
            with server.client() as client:
                await body(store, client)

    asyncio.run(run())


def outgoing(number: int = 1, *, hold_seconds: float = 0.0, tries: int = 1, twin: int = SECOND, action: str = "send") -> OutgoingRequest:
    """Return a request of the first host with the return queue ``ret-<number>``."""
    message = RelayMessage(uid=f"{twin}.{number}", cmd="x", src=FIRST, dst=(twin,), ret=f"ret-{number}", try_=tries)
    return OutgoingRequest(action, message, message.ret, twin, 60.0, message.failure("no room", 1.0), hold_seconds)


def reply_to(request: RelayMessage, **members: Any) -> RelayMessage:
    """Return the response to *request*."""
    return request.with_(src=request.dst[0], dst=(request.src,), ret=names.REPLY, **members)


async def taken(store: MessageStore, client: Any, queue: str, raw: bytes) -> bytes:
    """Push *raw* to *queue*, and take it."""
    client.rpush(queue, raw)
    assert await store.take(queue, 64) == [raw]
    return raw
