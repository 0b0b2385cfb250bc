"""How ``for`` reads from subscriptions of a ``Bus``. ``sbus.asyncio.iteration`` has the same names.

Written by hand, for speed: each step calls as little as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from sbus.errors import Closed
from sbus.inbox import Inbox, inbox_text
from sbus.items import Item, Message
from sbus.sync.beginning import Beginning
from sbus.sync.link import SyncLink

E = TypeVar("E")


class Iteration(Beginning):
    """The iteration over a subscription."""

    _link: SyncLink
    _inbox: Inbox

    def receive(self, timeout: float | None = None) -> Item:
        """Return the next item. Raises Closed."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until the subscription is closed."""
        return self._link.messages(self._inbox, self._missing)

    def _iterate(self) -> Iterator[Item]:
        """Yield the items until the subscription is closed."""
        return self._link.iterate(self._inbox)

    def _missing(self, item: Item) -> None:
        """Give *item*, which is not a message, to the program, or log it."""
        raise NotImplementedError


class IterationByReceive(Iteration):
    """The iteration over a subscription whose ``receive`` returns other items than those that arrive."""

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until the subscription is closed."""
        for item in self._iterate():
            if isinstance(item, Message):
                yield item
            else:
                self._missing(item)

    def _iterate(self) -> Iterator[Item]:
        """Yield the items until the subscription is closed."""
        while True:
            try:
                item = self.receive()
            except Closed:
                return
            yield item


class Events(Generic[E]):
    """The iteration over the items of *inbox*, each as *convert* returns it."""

    def __init__(self, link: SyncLink, inbox: Inbox, convert: Callable[[Item], E]) -> None:
        self._link = link
        self._inbox = inbox
        self._convert = convert

    def __repr__(self) -> str:
        return inbox_text(self, self._inbox)

    def __iter__(self) -> Iterator[E]:
        """Yield events until it is closed."""
        return map(self._convert, self._link.iterate(self._inbox))
