"""What a ``Bus`` yields item by item: messages, presence, a tap. ``aio_streams`` is the same for asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from sbusd.client.errors import Closed
from sbusd.client.inbox import AT_ONCE, Inbox
from sbusd.client.messages import Item
from sbusd.client.presence import PresenceItem, presence_item
from sbusd.client.sync.link import SyncLink
from sbusd.client.tap import TapItem, end_tap, tap_item


class Subscription:
    """Messages for one or more patterns, from :meth:`Bus.subscribe`: iterate over it, or call :meth:`receive`; leave it with ``with``.

    Iteration ends when you close the subscription or the bus, or take the last pattern away; the bus's end raises ``Disconnected``.
    """

    def __init__(self, link: SyncLink, inbox: Inbox) -> None:
        self._link = link
        self._inbox = inbox

    @property
    def patterns(self) -> tuple[bytes, ...]:
        """The patterns it holds now."""
        return tuple(self._inbox.patterns)

    def receive(self, timeout: float | None = None) -> Item:
        """Return the next item, waiting up to *timeout* seconds: None is for ever, 0 takes what is there.

        Raises:
            TimedOut: nothing came in time.
            Closed: you closed the subscription or the bus.
            Disconnected: the bus ended the connection, and everything that came before has been received.
            RemoteRefusal: the bus refused something that nobody waited for, such as a publication; receiving goes on after it.
            InboxFull: another subscription is full, and stops the reading.
        """
        return self._link.receive(self._inbox, timeout)

    def receive_many(self, limit: int = AT_ONCE, timeout: float | None = None) -> list[Item]:
        """Return what waits, at least one item and at most *limit*, waiting for the first one as ``receive`` does.

        Raises what ``receive`` raises, and ValueError where *limit* is below 1.
        """
        return self._link.receive_many(self._inbox, limit, timeout)

    def batches(self, limit: int = AT_ONCE) -> Iterator[list[Item]]:
        """Yield what :meth:`receive_many` would return until the subscription is closed: for many small messages cheaper than one by one.

        Raises what ``receive_many`` raises.
        """
        while True:
            try:
                items = self.receive_many(limit)
            except Closed:
                return
            yield items

    def close(self) -> None:
        """Send UNSUB for every pattern and forget what has not been received. Harmless when done already."""
        self._link.session.unsubscribe_all(self._inbox)
        self._inbox.patterns.clear()
        self._link.push()

    def __iter__(self) -> Iterator[Item]:
        """Yield items until the subscription is closed."""
        return self._link.iterate(self._inbox)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Presence:
    """Who comes and goes, from :meth:`Bus.presence`: iterate over it, or call :meth:`receive`; leave it with ``with``.

    Behind a ``Gap`` or ``Reconnected`` events are missing: ask for the members anew.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def receive(self, timeout: float | None = None) -> PresenceItem:
        """Return the next event, waiting up to *timeout* seconds: None is for ever, 0 takes what is there.

        Raises what ``Subscription.receive`` raises.
        """
        return presence_item(self._subscription.receive(timeout))

    def close(self) -> None:
        """End it. Harmless when done already."""
        self._subscription.close()

    def __iter__(self) -> Iterator[PresenceItem]:
        """Yield events until it is closed."""
        return map(presence_item, self._subscription)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Tap:
    """What the bus tells of its traffic, from :meth:`Bus.tap`: iterate over it, or call :meth:`receive`; leave it with ``with``."""

    def __init__(self, link: SyncLink, inbox: Inbox) -> None:
        self._link = link
        self._inbox = inbox

    def receive(self, timeout: float | None = None) -> TapItem:
        """Return the next record, waiting up to *timeout* seconds: None is for ever, 0 takes what is there.

        Raises what ``Subscription.receive`` raises.
        """
        return tap_item(self._link.receive(self._inbox, timeout))

    def close(self) -> None:
        """End it. Harmless when done already."""
        end_tap(self._link.session, self._inbox)
        self._link.push()

    def __iter__(self) -> Iterator[TapItem]:
        """Yield records until it is closed."""
        return map(tap_item, self._link.iterate(self._inbox))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
