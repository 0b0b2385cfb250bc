"""Subscriptions that begin with last values: ``subscribe(last=True)``."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Self

from sbus.asyncio.iteration import AsyncIterationByReceive
from sbus.asyncio.link import AsyncLink
from sbus.asyncio.streams import AsyncSubscription
from sbus.errors import Closed, TimedOut
from sbus.inbox import LIST_ITEMS, Inbox
from sbus.items import Gap, Item, Reconnected
from sbus.notices import OnGap
from sbus.protocol.memberships import split_stored
from sbus.store.merging import merged

if TYPE_CHECKING:
    from sbus.asyncio.store import AsyncStore


class AsyncLastValues(AsyncIterationByReceive, AsyncSubscription):
    """A subscription that begins with the last values of its keys, and gets them again where messages are missing."""

    def __init__(self, link: AsyncLink, inbox: Inbox, on_gap: OnGap | None, store: AsyncStore) -> None:
        super().__init__(link, inbox, on_gap)
        self._store = store
        self._items: deque[Item] = deque()
        self._is_loaded = False

    @property
    def pending(self) -> int:
        """Items that wait in this process to be received."""
        return len(self._items) + len(self._inbox)

    async def receive(self, timeout: float | None = None) -> Item:
        """Return the next item: last values first. Raises what ``Subscription.receive`` raises, and what ``Store.last`` raises."""
        return (await self.receive_many(1, timeout))[0]

    async def receive_many(self, limit: int = LIST_ITEMS, timeout: float | None = None) -> list[Item]:
        """Return items as ``Subscription.receive_many``: last values first. Raises what ``receive`` raises."""
        if not self._is_loaded and not self._items:
            await self._load()
        if not self._items:
            self._items.extend(await super().receive_many(limit, timeout))
        items: list[Item] = []
        while self._items and len(items) < limit:
            items.append(self._items.popleft())
            if isinstance(items[-1], (Gap, Reconnected)):
                self._is_loaded = False
        return items

    async def _begun(self) -> Self:
        """Subscribe first, so that no message is missed, and then load the last values."""
        await super()._begun()
        if not self._is_loaded:
            try:
                await self._load()
            except BaseException:
                await self.close()
                raise
        return self

    async def _load(self) -> None:
        """Put the last values before what has arrived up to now."""
        patterns = [split_stored(pattern)[0] for pattern in self._inbox.patterns]
        found = []
        arrived: list[Item] = []
        for pattern in dict.fromkeys(patterns):
            async for stored in self._store.last(pattern):
                found.append(stored.as_message())
                arrived += await self._arrived()
        arrived += await self._arrived()
        self._is_loaded = True
        self._items.extend(merged(found, arrived))

    async def _arrived(self) -> list[Item]:
        """Return what is here, so that the queue of the subscription does not become full while values are loaded."""
        if not len(self._inbox):
            return []
        try:
            return await super().receive_many(LIST_ITEMS, 0)
        except (TimedOut, Closed):
            return []
