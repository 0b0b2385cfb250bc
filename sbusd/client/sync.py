"""The bus for programs that wait: :class:`Bus` and :class:`Subscription`. ``aio`` is the same for asyncio.

A ``Bus`` belongs to one thread. It reads its socket only inside a call that waits: ``receive`` and iteration, ``subscribe``,
``whoami``, ``ping``, ``control``, and ``publish`` when the socket is full. What comes for other subscriptions meanwhile waits in their
queues. With ``Overflow.BLOCK``, the default, a full queue stops the reading; then such a call raises ``InboxFull``, since nobody but
its caller can make room. The default bounds are four times the bus's own, so only a subscription left unread gets there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from sbusd.client.address import Scope, bus_address
from sbusd.client.connection import parse_target
from sbusd.client.encoding import pattern_list, publication, to_bytes
from sbusd.client.inbox import QUEUE_BYTES, QUEUE_PACKETS, Bounds, Inbox, Overflow
from sbusd.client.ledger import Call
from sbusd.client.messages import Item
from sbusd.client.session import Session
from sbusd.client.statistics import Statistics
from sbusd.client.sync_link import SyncLink
from sbusd.protocol import controls
from sbusd.protocol.packets import control_packet


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


class Bus:
    """A connection to a bus, from :meth:`Bus.connect`; close it, or use it with ``with``.

    A call that takes longer than the bus's ``timeout`` raises TimedOut. What was on its way then is dropped when it comes late:
    an answer never reaches another call.
    """

    def __init__(self, link: SyncLink) -> None:
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
        """Connect to a bus; which one, :func:`~sbusd.client.address.bus_address` says.

        *timeout* in seconds bounds every call but ``receive``; None is for ever. With *reconnect*, a connection that is lost is made
        anew by the next call, after delays of up to 5 s between tries; each subscription then yields ``Reconnected``. The first
        connection is tried once. The queue's bounds and *overflow* hold for each subscription; see ``Overflow``. *separator* is the bus's.

        Raises:
            NoBus: nobody is there.
            BadAddressError: the address is malformed, or is a descriptor and *reconnect* is set.
            ValueError: a bound is below 1.
        """
        target = parse_target(bus_address(address, scope=scope), reconnect=reconnect)
        session = Session(separator, Bounds(queue_packets, queue_bytes, overflow))
        return cls(SyncLink(target, session, timeout, reconnect=reconnect))

    def publish(self, key: str | bytes, payload: bytes | str = b"") -> None:
        """Send *payload* to every client with a pattern that matches *key*. A str is sent in UTF-8.

        Waits while the socket is full; after an error nothing was sent. A refusal comes later, at the next receive or ping.

        Raises:
            PayloadTooLarge: the packet is longer than this connection can send.
            ProtocolError: *key* has a NUL.
            TimedOut: the socket was full for too long.
            Disconnected: the bus ended the connection.
        """
        self._link.send(publication(key, payload))

    def subscribe(self, *patterns: str | bytes) -> Subscription:
        """Subscribe to *patterns*, at least one, and return when the bus has accepted all: from now on messages are not missed.

        Raises:
            RemoteRefusal: the bus refused a pattern; none of them is subscribed to then.
            AnswerLost: packets for this client were lost, and with them perhaps a refusal.
            TimedOut, InboxFull, Disconnected: the bus could not be asked.
        """
        inbox = self._session.new_inbox(pattern_list(patterns))
        calls: list[Call] = []

        def start() -> list[Call]:
            calls.extend(self._session.subscribe(inbox))
            return calls

        try:
            self._link.call("subscribing", start)
            for call in calls:
                call.result()
        except BaseException:
            self._session.roll_back(inbox, calls)
            raise
        return Subscription(self._link, inbox)

    def unsubscribe(self, pattern: str | bytes) -> None:
        """Remove one instance of *pattern*, from the newest subscription that holds it; a subscription without patterns ends.

        Raises:
            NotSubscribed: none holds it.
        """
        self._session.unsubscribe(to_bytes(pattern))
        self._link.push()

    def whoami(self) -> bytes:
        """Return this client's credentials as the bus sees them: ``!/cred/<gid>/<uid>/<pid>``, the head of its secret keys.

        Raises what ``control`` raises.
        """
        return self.control(controls.WHOAMI)

    def ping(self) -> float:
        """Return the seconds of a round trip through the bus. On return everything that was sent before has been routed.

        Raises:
            RemoteRefusal: the bus refused something that was sent before and that nobody waited for, such as a publication.
            AnswerLost, TimedOut, InboxFull, Disconnected: the answer did not come.
        """
        calls: list[Call] = []
        begun = time.perf_counter()

        def start() -> list[Call]:
            nonlocal begun
            begun = time.perf_counter()
            calls.append(self._session.ping())
            return calls

        self._link.call("the answer to a ping", start)
        seconds = time.perf_counter() - begun
        calls[0].result()
        self._session.raise_refusal()
        return seconds

    def control(self, key: str | bytes, payload: bytes | str | None = None) -> bytes:
        """Send a control message, and return the payload of its answer. Spec: sbus-protocol(7) §6.

        Raises:
            RemoteRefusal: the bus refused it.
            Unanswered: the bus took it and does not answer it: send it with ``tell``.
            AnswerLost, TimedOut, InboxFull, Disconnected: the answer did not come; whether the bus has acted is not known.
        """
        calls: list[Call] = []

        def start() -> list[Call]:
            calls.append(self._session.control(to_bytes(key), None if payload is None else to_bytes(payload)))
            return calls

        self._link.call(f"the answer to {key!r}", start)
        return calls[0].result()

    def tell(self, key: str | bytes, payload: bytes | str | None = None) -> None:
        """Send a control message that is not answered, such as ``echo/off``. A refusal comes later, at the next receive or ping.

        Raises what ``publish`` raises.
        """
        self._link.send(control_packet(to_bytes(key), None if payload is None else to_bytes(payload)))

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

    def close(self) -> None:
        """End the connection and all subscriptions. What came before can still be received. Harmless when done already."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
