"""The bus for asyncio: :class:`AsyncBus` and :class:`AsyncSubscription`. ``sync`` is the same for programs that wait.

An ``AsyncBus`` belongs to one event loop; any number of its tasks may use it. It reads whenever the loop runs and no subscription is
full. With ``Overflow.BLOCK``, the default, a full one stops the reading, for answers and other subscriptions too, until its task
has received some; a task that waits for an answer while it alone could empty the full subscription waits until its time-out.

Cancelling any call is safe: a publication was then sent whole or not at all, an item that was not returned is still there, an
answer that comes late is dropped, and a subscription that was not returned is taken back.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Self

from sbusd.client.address import Scope, bus_address
from sbusd.client.aio_link import AioLink
from sbusd.client.connection import parse_target
from sbusd.client.encoding import pattern_list, publication, to_bytes
from sbusd.client.errors import Closed
from sbusd.client.inbox import QUEUE_BYTES, QUEUE_PACKETS, Bounds, Inbox, Overflow
from sbusd.client.ledger import Call
from sbusd.client.messages import Item
from sbusd.client.session import Session
from sbusd.client.statistics import Statistics
from sbusd.protocol import controls
from sbusd.protocol.packets import control_packet


class AsyncSubscription:
    """Messages for one or more patterns, from :meth:`AsyncBus.subscribe`: iterate over it, or call :meth:`receive`.

    It begins with ``async with``, which also ends it, or with ``await``, and then you close it. Iteration ends when you close the
    subscription or the bus, or take the last pattern away; the bus's end raises ``Disconnected``.
    """

    def __init__(self, link: AioLink, inbox: Inbox) -> None:
        self._link = link
        self._inbox = inbox
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
            raise RuntimeError("a subscription begins with 'async with' or 'await'")
        return await self._link.receive(self._inbox, timeout)

    async def close(self) -> None:
        """Send UNSUB for every pattern and forget what has not been received. Harmless when done already."""
        self._link.session.unsubscribe_all(self._inbox)
        self._inbox.patterns.clear()
        self._link.push()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        """Return the next item; the end comes when the subscription is closed."""
        link = self._link
        if not (link.session.refusals or link.is_paused) and (item := self._inbox.take()) is not None:
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


class AsyncBus:
    """A connection to a bus, from :meth:`AsyncBus.connect`.

    It opens with ``async with``, which also closes it, or with ``await``, and then you close it.

    A call that takes longer than the bus's ``timeout`` raises TimedOut. What was on its way then is dropped when it comes late:
    an answer never reaches another call.
    """

    def __init__(self, link: AioLink) -> None:
        self._link = link
        self._session = link.session

    @classmethod
    def connect(
        cls,
        address: str | None = None,
        *,
        scope: Scope | None = None,
        timeout: float | None = 30.0,
        reconnect: bool = False,
        queue_packets: int = QUEUE_PACKETS,
        queue_bytes: int = QUEUE_BYTES,
        overflow: Overflow = Overflow.BLOCK,
        separator: bytes = b"/",
    ) -> Self:
        """Return a bus to open; which one, :func:`~sbusd.client.address.bus_address` says.

        *timeout* in seconds bounds every call but ``receive``; None is for ever. With *reconnect*, a connection that is lost is made
        anew in the background, with delays of up to 5 s between tries; each subscription then yields ``Reconnected``. The first
        connection is tried once. The queue's bounds and *overflow* hold for each subscription; see ``Overflow``. *separator* is the bus's.

        Raises:
            NoBus: nobody is there; raised by ``async with`` and ``await``.
            BadAddressError: the address is malformed, or is a descriptor and *reconnect* is set.
            ValueError: a bound is below 1.
        """
        target = parse_target(bus_address(address, scope=scope), reconnect=reconnect)
        session = Session(separator, Bounds(queue_packets, queue_bytes, overflow))
        return cls(AioLink(target, session, timeout, reconnect=reconnect))

    async def publish(self, key: str | bytes, payload: bytes | str = b"") -> None:
        """Send *payload* to every client with a pattern that matches *key*. A str is sent in UTF-8.

        Waits while the socket is full; after an error nothing was sent. A refusal comes later, at the next receive or ping.

        Raises:
            PayloadTooLarge: the packet is longer than this connection can send.
            ProtocolError: *key* has a NUL.
            TimedOut: the socket was full for too long.
            Disconnected: the bus ended the connection.
        """
        await self._link.send(publication(key, payload))

    def subscribe(self, *patterns: str | bytes) -> AsyncSubscription:
        """Subscribe to *patterns*, at least one, with ``async with`` or ``await``; when that is done, messages are not missed any more.

        Raises, then:
            RemoteRefusal: the bus refused a pattern; none of them is subscribed to then.
            AnswerLost: packets for this client were lost, and with them perhaps a refusal.
            TimedOut, Disconnected: the bus could not be asked.
        """
        return AsyncSubscription(self._link, self._session.new_inbox(pattern_list(patterns)))

    async def unsubscribe(self, pattern: str | bytes) -> None:
        """Remove one instance of *pattern*, from the newest subscription that holds it; a subscription without patterns ends.

        Raises:
            NotSubscribed: none holds it.
        """
        self._session.unsubscribe(to_bytes(pattern))
        self._link.push()

    async def whoami(self) -> bytes:
        """Return this client's credentials as the bus sees them: ``!/cred/<gid>/<uid>/<pid>``, the head of its secret keys.

        Raises what ``control`` raises.
        """
        return await self.control(controls.WHOAMI)

    async def ping(self) -> float:
        """Return the seconds of a round trip through the bus. On return everything that was sent before has been routed.

        Raises:
            RemoteRefusal: the bus refused something that was sent before and that nobody waited for, such as a publication.
            AnswerLost, TimedOut, Disconnected: the answer did not come.
        """
        calls: list[Call] = []
        begun = time.perf_counter()

        def start() -> list[Call]:
            nonlocal begun
            begun = time.perf_counter()
            calls.append(self._session.ping())
            return calls

        await self._link.call("the answer to a ping", start)
        seconds = time.perf_counter() - begun
        calls[0].result()
        self._session.raise_refusal()
        return seconds

    async def control(self, key: str | bytes, payload: bytes | str | None = None) -> bytes:
        """Send a control message, and return the payload of its answer. Spec: sbus-protocol(7) §6.

        Raises:
            RemoteRefusal: the bus refused it.
            Unanswered: the bus took it and does not answer it: send it with ``tell``.
            AnswerLost, TimedOut, Disconnected: the answer did not come; whether the bus has acted is not known.
        """
        calls: list[Call] = []

        def start() -> list[Call]:
            calls.append(self._session.control(to_bytes(key), None if payload is None else to_bytes(payload)))
            return calls

        await self._link.call(f"the answer to {key!r}", start)
        return calls[0].result()

    async def tell(self, key: str | bytes, payload: bytes | str | None = None) -> None:
        """Send a control message that is not answered, such as ``echo/off``. A refusal comes later, at the next receive or ping.

        Raises what ``publish`` raises.
        """
        await self._link.send(control_packet(to_bytes(key), None if payload is None else to_bytes(payload)))

    @property
    def statistics(self) -> Statistics:
        """The counts up to now; the bus may be closed."""
        return self._session.statistics()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading; a new one after a reconnection.

        Duty: what has been read already does not show on it, so before you poll take all there is with ``receive(timeout=0)``.

        Raises:
            Closed, Disconnected: there is none.
        """
        return self._link.fileno()

    async def close(self) -> None:
        """End the connection and all subscriptions. What came before can still be received. Harmless when done already."""
        await self._link.close()

    def __await__(self) -> Generator[None, None, Self]:
        return (yield from self._open().__await__())

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _open(self) -> Self:
        """Connect, unless that is done."""
        await self._link.open()
        return self
