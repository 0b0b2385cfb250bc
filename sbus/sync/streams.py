# Made from sbus/asyncio/streams.py by "make faces": edit that.
"""What a bus yields item by item: messages, presence, a tap."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Self

from sbus import operations
from sbus.errors import Closed
from sbus.inbox import LIST_ITEMS, Inbox, inbox_text
from sbus.items import Item, Message, PresenceItem, TapItem, presence_item, tap_item
from sbus.notices import OnGap
from sbus.operations import end_tap
from sbus.protocol.keys import text_of
from sbus.protocol.memberships import split_stored
from sbus.sync.iteration import Events, Iteration
from sbus.sync.link import SyncLink


class Subscription(Iteration):
    """Messages for one or more patterns, from :meth:`Bus.subscribe`: iterate over it, or call :meth:`receive`; leave it by ``with``.

    Iteration yields messages. Where some are missing, it calls *on_gap* of ``subscribe`` with a ``Gap``, ``Reconnected`` or ``Replaced``;
    ``items`` and the other methods return these items at their places instead.

    Iteration ends when you close the subscription or the bus, or unsubscribe from its last pattern. If the bus closes the connection,
    iteration raises ``Disconnected``.
    """

    def __init__(self, link: SyncLink, inbox: Inbox, on_gap: OnGap | None = None) -> None:
        self._link = link
        self._inbox = inbox
        self._on_gap = on_gap

    def __repr__(self) -> str:
        return inbox_text(self, self._inbox)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Its present patterns."""
        return tuple(text_of(split_stored(pattern)[0]) for pattern in self._inbox.patterns)

    @property
    def pending(self) -> int:
        """Items that wait in this process to be received. The socket can hold more, which ``ping`` reads."""
        return len(self._inbox)

    @property
    def dropped(self) -> int:
        """Messages that were discarded here because its queue was full, with ``Overflow.DISCARD``."""
        return self._inbox.discarded

    def receive(self, timeout: float | None = None) -> Item:
        """Return the next item, and wait for it up to *timeout* seconds: None means no limit, 0 returns only an item that is here.

        Raises:
            TimedOut: no item came in time.
            Closed: you closed the subscription or the bus.
            Disconnected: the bus closed the connection, and everything that came before has been received.
            InboxFull: another subscription is full, and stops the reading; only from a ``Bus``.
            RuntimeError: the subscription of an ``AsyncBus`` has not begun.
        """
        return self._link.receive(self._inbox, timeout)

    def receive_many(self, limit: int = LIST_ITEMS, timeout: float | None = None) -> list[Item]:
        """Return the queued items, at least one and at most *limit*; wait for the first one as ``receive`` does.

        Raises what ``receive`` raises, and ValueError if *limit* is below 1.
        """
        return self._link.receive_many(self._inbox, limit, timeout)

    def batches(self, limit: int = LIST_ITEMS) -> Iterator[list[Item]]:
        """Yield lists as of :meth:`receive_many` until the subscription is closed: cheaper than single items if messages are small.

        Raises what ``receive_many`` raises.
        """
        while True:
            try:
                items = self.receive_many(limit)
            except Closed:
                return
            yield items

    def items(self) -> Iterator[Item]:
        """Yield messages, and at their places what is missing between them, until the subscription is closed.

        Raises what ``receive`` raises.
        """
        return self._iterate()

    def drain(self) -> None:
        """Unsubscribe from every pattern, and end when everything that the bus sent before has been received. Does not wait for that."""
        self._link.drain(self._inbox)

    def close(self) -> None:
        """Unsubscribe from every pattern, and drop the items that have not been received. Harmless when already closed.

        Messages of a queue group that wait here go to its other members on this connection, if there are any.
        """
        self._link.change(partial(self._link.session.unsubscribe_all, self._inbox))

    def __enter__(self) -> Self:
        return self._begun()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _begun(self) -> Self:
        """Subscribe, unless that has been done."""
        self._inbox.is_used = True
        self._link.run(operations.subscribe(self._link.session, self._inbox, self._link.timeout))
        return self

    def _missing(self, item: Item) -> None:
        """Give *item*, which is not a message, to the program, or log it."""
        if self._on_gap is None:
            self._link.session.notice_log.missing(item, self._inbox.patterns)
        elif not isinstance(item, Message):
            self._on_gap(item)


class Presence(Events[PresenceItem]):
    """Connections and subscriptions that begin and end, from :meth:`Bus.presence`: iterate over it, or call :meth:`receive`.

    Leave it by ``with``. After a ``Gap`` or ``Reconnected`` events are missing: ask for the members again.
    """

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription._link, subscription._inbox, presence_item)
        self._subscription = subscription

    def receive(self, timeout: float | None = None) -> PresenceItem:
        """Return the next event, and wait for it up to *timeout* seconds: None means no limit, 0 returns only an event that is here.

        Raises what ``Subscription.receive`` raises.
        """
        return presence_item(self._subscription.receive(timeout))

    def close(self) -> None:
        """End it. Harmless when already closed."""
        self._subscription.close()

    def __enter__(self) -> Self:
        self._subscription.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Tap(Events[TapItem]):
    """The bus's traffic as records, from :meth:`Bus.tap`: iterate over it, or call :meth:`receive`; leave it by ``with``."""

    def __init__(self, link: SyncLink, inbox: Inbox) -> None:
        super().__init__(link, inbox, tap_item)

    def receive(self, timeout: float | None = None) -> TapItem:
        """Return the next record, and wait for it up to *timeout* seconds: None means no limit, 0 returns only a record that is here.

        Raises what ``Subscription.receive`` raises.
        """
        return tap_item(self._link.receive(self._inbox, timeout))

    def close(self) -> None:
        """End it. Harmless when already closed."""
        self._link.change(partial(end_tap, self._link.session, self._inbox))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
