"""How ``async for`` reads from subscriptions of an ``AsyncBus``. ``sbus.sync.iteration`` has the same names.

Written by hand, for speed: each step calls as little as possible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sized
from typing import Generic, Self, TypeVar

from sbus.asyncio.beginning import AsyncBeginning, WarnsIfUnused
from sbus.asyncio.link import AsyncLink
from sbus.errors import Closed
from sbus.inbox import Inbox, inbox_text
from sbus.items import Item, Message

E = TypeVar("E")

make_taker: Callable[[deque[Message], Sized, Callable[[], Awaitable[Message]]], AsyncIterator[Message]] | None
"""Makes an iterator that yields the same as ``AsyncIteration.__anext__`` and is faster; None in a tree that is not built."""
try:
    from sbus.speedups import Taker

    make_taker = Taker
except ImportError:
    make_taker = None


class AsyncIteration(WarnsIfUnused, AsyncBeginning):
    """The iteration over a subscription."""

    _link: AsyncLink
    _inbox: Inbox

    async def receive(self, timeout: float | None = None) -> Item:
        """Return the next item. Raises Closed."""
        raise NotImplementedError

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

    async def _iterate(self) -> AsyncIterator[Item]:
        """Yield the items until the subscription is closed."""
        while True:
            try:
                yield await self._next_item()
            except Closed:
                return

    async def _next_item(self) -> Item:
        """Return the next item; faster than :meth:`receive` if it is here. Raises Closed."""
        link, inbox = self._link, self._inbox
        refusals = link.session.refusals
        if inbox.ready and not refusals:
            return inbox.ready.popleft()
        if not (refusals or link.is_paused) and (item := inbox.take()) is not None:
            return item
        return await link.receive(inbox, None)

    def _missing(self, item: Item) -> None:
        """Give *item*, which is not a message, to the program, or log it."""
        raise NotImplementedError


class AsyncIterationByReceive(AsyncIteration):
    """The iteration over a subscription whose ``receive`` returns other items than those that arrive."""

    def __aiter__(self) -> AsyncIterator[Message]:
        """Return an iterator over the messages until the subscription is closed."""
        return self

    async def _next_item(self) -> Item:
        """Return the next item. Raises Closed."""
        return await self.receive()


class AsyncEvents(Generic[E]):
    """The iteration over the items of *inbox*, each as *convert* returns it."""

    def __init__(self, link: AsyncLink, inbox: Inbox, convert: Callable[[Item], E]) -> None:
        self._link = link
        self._inbox = inbox
        self._convert = convert

    def __repr__(self) -> str:
        return inbox_text(self, self._inbox)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> E:
        """Return the next event; iteration ends when it is closed."""
        try:
            return self._convert(await self._link.receive(self._inbox, None))
        except Closed:
            raise StopAsyncIteration from None
