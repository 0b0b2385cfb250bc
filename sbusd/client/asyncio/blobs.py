"""Large messages and descriptors for asyncio: a part of ``AsyncBus``. The methods are documented in ``sbusd.client.sync.blobs``."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator

from sbusd.client.arguments import check_count
from sbusd.client.asyncio import documented_by
from sbusd.client.asyncio.blob_socket import AsyncBlobSocket
from sbusd.client.asyncio.link import AsyncLink
from sbusd.client.asyncio.streams import AsyncSubscription
from sbusd.client.blobs import (
    Blob,
    BlobRecipient,
    blob_of,
    descriptor_of,
    get_request,
    gone,
    message_with,
    pass_request,
    put_terms,
    reference_payload,
    ticket_and_host_of,
    ticket_of,
    ticket_request,
)
from sbusd.client.encoding import publication
from sbusd.client.errors import BlobRefused, NoBlobService, SbusError, TimedOut
from sbusd.client.inbox import LIST_ITEMS, Inbox
from sbusd.client.items import Item, Message
from sbusd.client.memory_files import BlobData
from sbusd.client.notices import OnGap
from sbusd.client.sync.blobs import BlobMethods, BlobSubscription
from sbusd.protocol.blobs import DEFAULT_EXPIRE, DEFAULT_TYPE, MAX_PASS_EXPIRE, parse_reference


@documented_by(BlobMethods)
class AsyncBlobMethods:
    """Large messages and descriptors, a part of ``AsyncBus``."""

    _link: AsyncLink
    _blobs: AsyncBlobSocket | None = None

    async def publish_blob(
        self,
        key: str | bytes,
        data: BlobData,
        *,
        type: str = DEFAULT_TYPE,
        expire: float = DEFAULT_EXPIRE,
        uses: int | None = None,
        to: BlobRecipient = None,
        keep: bool = False,
    ) -> str:
        publication(key, b"")
        terms = put_terms(type, expire, uses, to, keep=keep)
        blobs = self._blob_socket()
        fd, size = await blobs.prepare(data)
        try:
            ticket, host = ticket_and_host_of(await blobs.exchange({"request": "put", "size": size, **terms}, fd), blobs.address)
        finally:
            os.close(fd)
        packet = publication(key, reference_payload(ticket, size, type, expire, host))
        try:
            if not self._link.send_now(packet):
                await self._link.send_later(packet)
        except SbusError:
            await self.drop_blob(ticket)
            raise
        return ticket

    async def get_blob(self, ticket: str, *, host: str = "") -> Blob:
        request, blobs = get_request(ticket, host), self._blob_socket()
        return blob_of(await (blobs.remote if host else blobs).exchange(request), blobs.address)

    async def drop_blob(self, ticket: str) -> None:
        (await self._blob_socket().exchange(ticket_request("drop", ticket))).close()

    async def pass_fd(self, fd: int, *, to: BlobRecipient, expire: float = MAX_PASS_EXPIRE) -> str:
        request, blobs = pass_request(fd, to, expire), self._blob_socket()
        return ticket_of(await blobs.exchange(request, fd), blobs.address)

    async def take_fd(self, ticket: str) -> int:
        request, blobs = ticket_request("get", ticket, kind="any"), self._blob_socket()
        return descriptor_of(await blobs.exchange(request), blobs.address)

    def _blob_socket(self) -> AsyncBlobSocket:
        """Return the connection to sbus-blob, which is made at its first request."""
        if self._blobs is None:
            self._blobs = AsyncBlobSocket(self._link.target.text, self._link.timeout)
        return self._blobs

    def _close_blobs(self) -> None:
        """Close the connection to sbus-blob."""
        if self._blobs is not None:
            self._blobs.close()


@documented_by(BlobSubscription)
class AsyncBlobSubscription(AsyncSubscription):
    """A subscription with *blobs*: a message that refers to a blob is yielded with its content."""

    def __init__(self, link: AsyncLink, inbox: Inbox, on_gap: OnGap | None, blobs: AsyncBlobSocket) -> None:
        super().__init__(link, inbox, on_gap)
        self._blobs = blobs
        self._unopened: deque[Item] = deque()

    async def receive(self, timeout: float | None = None) -> Item:
        item = self._unopened.popleft() if self._unopened else await super().receive(timeout)
        try:
            return await self._opened(item)
        except BaseException:
            self._unopened.appendleft(item)
            raise

    async def receive_many(self, limit: int = LIST_ITEMS, timeout: float | None = None) -> list[Item]:
        check_count(limit, "limit", 1)
        return [await self.receive(timeout)]

    async def items(self) -> AsyncIterator[Item]:
        async for item in super().items():  # by _next_item
            yield item

    def __aiter__(self) -> AsyncIterator[Message]:
        """Return an iterator over the messages until the subscription is closed."""
        return self

    async def _next_item(self) -> Item:
        """Return the next item. Raises Closed."""
        return await self.receive()

    async def _opened(self, item: Item) -> Item:
        """Return *item* with the content of its blob, or a ``BlobGone``."""
        reference = parse_reference(item.payload) if isinstance(item, Message) else None
        if not isinstance(item, Message) or reference is None:
            return item
        try:
            reply = await self._blobs.remote.exchange(get_request(reference.ticket, reference.host))
            return message_with(item, blob_of(reply, self._blobs.address))
        except (BlobRefused, NoBlobService) as error:
            reason = error.reason
        except TimedOut as error:
            reason = str(error)
        self._link.session.counters.blobs_gone += 1
        return gone(item, reason)
