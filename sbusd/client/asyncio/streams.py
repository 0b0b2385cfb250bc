"""What an ``AsyncBus`` yields item by item: messages, presence, a tap. ``sync_streams`` is the same for programs that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence, Sized
from types import TracebackType
from typing import Self

from sbusd.client.asyncio.link import AioLink
from sbusd.client.errors import Closed
from sbusd.client.inbox import AT_ONCE, Inbox
from sbusd.client.messages import Item, Message
from sbusd.client.pending_replies import Call
from sbusd.client.presence import PresenceItem, presence_item
from sbusd.client.tap import TapItem, end_tap, tap_item

make_taker: Callable[[deque[Message], Sized, Callable[[], Awaitable[Item]]], AsyncIterator[Item]] | None
"""What makes an iterator that is faster than ``AsyncSubscription.__anext__`` and yields the same, in a tree that is built."""
try:
    from sbusd.client._speedups.taker import Taker

    make_taker = Taker
except ImportError:
    make_taker = None


class AsyncSubscription:
    """Messages for one or more patterns, from :meth:`AsyncBus.subscribe`: iterate over it, or call :meth:`receive`.

    It begins with ``async with``, which also ends it, or with ``await``, and then you close it. Iteration ends when you close the
    subscription or the bus, or take the last pattern away; the bus's end raises ``Disconnected``.
    """

    def __init__(self, link: AioLink, inbox: Inbox) -> None:
        self._link = link
        self._inbox = inbox
        self._ready = inbox.ready
        self._refusals = link.session.refusals
        self._is_begun = False

    @property
    def patterns(self) -> tuple[bytes, ...]:
        """The patterns it holds now."""
        return tuple(self._inbox.patterns)

    async def receive(self, timeout: float | None = None) -> Item:
        """Return the next item, waiting up to *timeout* seconds: None is for ever, 0 takes what is there.

        Raises:
            TimedOut: nothing came in time.
            Closed: you closed the subscription or the bus.
            Disconnected: the bus ended the connection, and everything that came before has been received.
            RemoteRefusal: the bus refused something that nobody waited for, such as a publication; receiving goes on after it.
            RuntimeError: the subscription has not begun.
        """
        if not self._is_begun:
            raise RuntimeError("the subscription is not open: use 'async with' or 'await' first")
        return await self._link.receive(self._inbox, timeout)

    async def receive_many(self, limit: int = AT_ONCE, timeout: float | None = None) -> list[Item]:
        """Return what waits, at least one item and at most *limit*, waiting for the first one as ``receive`` does.

        Raises what ``receive`` raises, and ValueError where *limit* is below 1.
        """
        if not self._is_begun:
            raise RuntimeError("the subscription is not open: use 'async with' or 'await' first")
        return await self._link.receive_many(self._inbox, limit, timeout)

    async def batches(self, limit: int = AT_ONCE) -> AsyncIterator[list[Item]]:
        """Yield what :meth:`receive_many` would return until the subscription is closed: for many small messages cheaper than one by one.

        Raises what ``receive_many`` raises.
        """
        while True:
            try:
                items = await self.receive_many(limit)
            except Closed:
                return
            yield items

    async def close(self) -> None:
        """Send UNSUB for every pattern and forget what has not been received. Harmless when done already."""
        self._link.session.unsubscribe_all(self._inbox)
        self._inbox.patterns.clear()
        self._link.push()

    def __aiter__(self) -> AsyncIterator[Item]:
        """Return what yields items until the subscription is closed."""
        return self if make_taker is None else make_taker(self._ready, self._refusals, self.__anext__)

    async def __anext__(self) -> Item:
        """Return the next item; the end comes when the subscription is closed."""
        if self._ready and not self._refusals:
            return self._ready.popleft()
        link = self._link
        if not (self._refusals or link.is_paused) and (item := self._inbox.take()) is not None:
            return item
        try:
            return await self.receive()
        except Closed:
            raise StopAsyncIteration from None

    def __await__(self) -> Generator[None, None, Self]:
        return (yield from self._begin().__await__())

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _begin(self) -> Self:
        """Subscribe, unless that is done."""
        if self._is_begun:
            return self
        session, inbox = self._link.session, self._inbox
        calls: list[Call] = []

        def start() -> Sequence[Call]:
            calls.extend(session.subscribe(inbox))
            return calls

        try:
            await self._link.call("subscribing", start)
            for call in calls:
                call.result()
        except BaseException:
            session.roll_back(inbox, calls)
            self._link.push()
            raise
        self._is_begun = True
        return self


class AsyncPresence:
    """Who comes and goes, from :meth:`AsyncBus.presence`: iterate over it, or call :meth:`receive`.

    It begins with ``async with``, which also ends it. Behind a ``Gap`` or ``Reconnected`` events are missing: ask for the members anew.
    """

    def __init__(self, subscription: AsyncSubscription) -> None:
        self._subscription = subscription

    async def receive(self, timeout: float | None = None) -> PresenceItem:
        """Return the next event, waiting up to *timeout* seconds: None is for ever, 0 takes what is there.

        Raises what ``AsyncSubscription.receive`` raises.
        """
        return presence_item(await self._subscription.receive(timeout))

    async def close(self) -> None:
        """End it. Harmless when done already."""
        await self._subscription.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PresenceItem:
        """Return the next event; the end comes when it is closed."""
        return presence_item(await anext(self._subscription))

    async def __aenter__(self) -> Self:
        await self._subscription
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


class AsyncTap:
    """What the bus tells of its traffic, from :meth:`AsyncBus.tap`: iterate, or call :meth:`receive`; leave it with ``async with``."""

    def __init__(self, link: AioLink, inbox: Inbox) -> None:
        self._link = link
        self._inbox = inbox

    async def receive(self, timeout: float | None = None) -> TapItem:
        """Return the next record, waiting up to *timeout* seconds: None is for ever, 0 takes what is there.

        Raises what ``AsyncSubscription.receive`` raises.
        """
        return tap_item(await self._link.receive(self._inbox, timeout))

    async def close(self) -> None:
        """End it. Harmless when done already."""
        end_tap(self._link.session, self._inbox)
        self._link.push()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TapItem:
        """Return the next record; the end comes when it is closed."""
        try:
            return await self.receive()
        except Closed:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()
