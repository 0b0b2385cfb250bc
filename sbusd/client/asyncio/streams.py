"""What an ``AsyncBus`` yields item by item: messages, presence, a tap. The methods are documented in ``sbusd.client.sync.streams``."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sized
from types import TracebackType
from typing import Self

from sbusd.client import operations
from sbusd.client.asyncio import documented_by
from sbusd.client.asyncio.link import AsyncLink
from sbusd.client.asyncio.unused_subscriptions import WarnsIfUnused
from sbusd.client.errors import Closed
from sbusd.client.inbox import LIST_ITEMS, Inbox, inbox_text
from sbusd.client.items import Item, Message, PresenceItem, TapItem, presence_item, tap_item
from sbusd.client.notices import OnGap
from sbusd.client.operations import end_tap
from sbusd.client.sync.streams import Presence, Subscription, Tap
from sbusd.protocol.keys import text_of
from sbusd.protocol.memberships import split_stored

make_taker: Callable[[deque[Message], Sized, Callable[[], Awaitable[Message]]], AsyncIterator[Message]] | None
"""Makes an iterator that yields the same as ``AsyncSubscription.__anext__`` and is faster; None in a tree that is not built."""
try:
    from sbusd.client.speedups import Taker

    make_taker = Taker
except ImportError:
    make_taker = None


@documented_by(Subscription)
class AsyncSubscription(WarnsIfUnused):
    """Messages for one or more patterns, from :meth:`AsyncBus.subscribe`: iterate over it, or call :meth:`receive`.

    It begins with ``async with``, which also ends it, or with ``await``, and then you close it. Iteration ends when you close the
    subscription or the bus, or unsubscribe from its last pattern. If the bus closes the connection, iteration raises ``Disconnected``.
    """

    def __init__(self, link: AsyncLink, inbox: Inbox, on_gap: OnGap | None = None) -> None:
        self._link = link
        self._inbox = inbox
        self._on_gap = on_gap

    def __repr__(self) -> str:
        return inbox_text(self, self._inbox)

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(text_of(split_stored(pattern)[0]) for pattern in self._inbox.patterns)

    @property
    def pending(self) -> int:
        return len(self._inbox)

    @property
    def dropped(self) -> int:
        return self._inbox.discarded

    async def receive(self, timeout: float | None = None) -> Item:
        return await self._link.receive(self._inbox, timeout)

    async def receive_many(self, limit: int = LIST_ITEMS, timeout: float | None = None) -> list[Item]:
        return await self._link.receive_many(self._inbox, limit, timeout)

    async def batches(self, limit: int = LIST_ITEMS) -> AsyncIterator[list[Item]]:
        while True:
            try:
                items = await self.receive_many(limit)
            except Closed:
                return
            yield items

    async def items(self) -> AsyncIterator[Item]:
        while True:
            try:
                yield await self._next_item()
            except Closed:
                return

    async def drain(self) -> None:
        self._link.drain(self._inbox)

    async def close(self) -> None:
        with self._link.entered():
            self._link.session.unsubscribe_all(self._inbox)
            self._inbox.patterns.clear()
        self._link.push()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Return an iterator over the messages until the subscription is closed."""
        return self if make_taker is None else make_taker(self._inbox.ready, self._link.session.refusals, self.__anext__)

    async def __anext__(self) -> Message:
        """Return the next message; iteration ends when the subscription is closed."""
        while True:
            try:
                item = await self._next_item()
            except Closed:
                raise StopAsyncIteration from None
            if isinstance(item, Message):
                return item
            self._missing(item)

    async def _next_item(self) -> Item:
        """Return the next item; faster than :meth:`receive` if it is here. Raises Closed."""
        link, inbox = self._link, self._inbox
        refusals = link.session.refusals
        if inbox.ready and not refusals:
            return inbox.ready.popleft()
        if not (refusals or link.is_paused) and (item := inbox.take()) is not None:
            return item
        return await link.receive(inbox, None)

    def __await__(self) -> Generator[None, None, Self]:
        return self._begun().__await__()

    async def __aenter__(self) -> Self:
        return await self._begun()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _begun(self) -> Self:
        """Subscribe, unless that has been done."""
        self._inbox.is_used = True
        await self._link.run(operations.subscribe(self._link.session, self._inbox, self._link.timeout))
        return self

    def _missing(self, item: Item) -> None:
        """Give *item*, which is not a message, to the program, or log it."""
        if self._on_gap is None:
            self._link.session.notice_log.missing(item, self._inbox.patterns)
        elif not isinstance(item, Message):
            self._on_gap(item)


@documented_by(Presence)
class AsyncPresence:
    """Connections and subscriptions that begin and end, from :meth:`AsyncBus.presence`: iterate over it, or call :meth:`receive`.

    It begins with ``async with``, which also ends it. After a ``Gap`` or ``Reconnected`` events are missing: ask for the members again.
    """

    def __init__(self, subscription: AsyncSubscription) -> None:
        self._subscription = subscription

    def __repr__(self) -> str:
        return inbox_text(self, self._subscription._inbox)

    async def receive(self, timeout: float | None = None) -> PresenceItem:
        return presence_item(await self._subscription.receive(timeout))

    async def close(self) -> None:
        await self._subscription.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PresenceItem:
        """Return the next event; iteration ends when it is closed."""
        try:
            return await self.receive()
        except Closed:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        await self._subscription.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


@documented_by(Tap)
class AsyncTap:
    """The bus's traffic as records, from :meth:`AsyncBus.tap`: iterate, or call :meth:`receive`; leave it with ``async with``."""

    def __init__(self, link: AsyncLink, inbox: Inbox) -> None:
        self._link = link
        self._inbox = inbox

    def __repr__(self) -> str:
        return inbox_text(self, self._inbox)

    async def receive(self, timeout: float | None = None) -> TapItem:
        return tap_item(await self._link.receive(self._inbox, timeout))

    async def close(self) -> None:
        with self._link.entered():
            end_tap(self._link.session, self._inbox)
        self._link.push()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TapItem:
        """Return the next record; iteration ends when it is closed."""
        try:
            return await self.receive()
        except Closed:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()
