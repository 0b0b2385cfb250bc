"""The bus for asyncio: :class:`AsyncBus`.

An ``AsyncBus`` belongs to one event loop; any number of its tasks may use it. It reads whenever the loop runs and no subscription is
full. With ``Overflow.BLOCK``, the default, a full subscription stops the reading, for responses and other subscriptions too, until its
task has received some messages. A task that waits for a response while only it could empty the full subscription waits until its timeout.

Any call can be cancelled safely: a publication was then either sent whole or not at all, an item that was not returned is still
queued, a late response is dropped, and a subscription that was not returned is undone.

The logger ``sbus`` has records with level INFO: a connection and its end, a reconnection with its attempts and seconds, and the
numbers of lost packets. Those with level WARNING are: a connection that is lost and made again, messages that are missing without
``on_gap``, and refusals without ``on_refused``. Of the last two and of losses, the 1st, 2nd, 4th, 8th and so on is logged. No record has a
payload. Without a handler, only the warnings about messages and refusals go to standard error. A ``logging.Handler`` may use the bus
that a record is about. A ``Bus`` writes the same records.
"""
# In sync:
# The bus for blocking programs: :class:`Bus`.
#
# Any number of threads may use a ``Bus`` at the same time. The messages of each thread keep their order; several threads that receive from
# one subscription share its messages. ``coalesce`` gathers what its own thread publishes. One thread at a time serves requests.
#
# Without ``background``, a ``Bus`` reads its socket only inside a call that waits, such as ``receive``, ``subscribe`` or ``ping``. One of
# the threads in such a call reads for all of them, and queues messages for other subscriptions. With ``Overflow.BLOCK``, the default, a
# full queue stops the reading. A call then waits up to 30 s for the thread that received from that subscription last; if that is its own
# thread, or none, it raises ``InboxFull``.
#
# A signal handler may use the bus. If it has interrupted a call of the same bus, it can publish without ``receipt``, end a subscription,
# and call ``stop_serving`` and ``close``. These take effect at the end of the interrupted call at the latest, in their order; errors
# that the bus finds only then are not raised. Any other call can raise RuntimeError there: let the handler set a flag.

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, overload

from sbus import operations
from sbus.arguments import AsyncWithBlock, check_callable, check_connection, made_link
from sbus.asyncio.beginning import AsyncBeginning, begin, make_link
from sbus.asyncio.blobs import AsyncBlobMethods, AsyncBlobSubscription
from sbus.asyncio.calls import AsyncCallMethods
from sbus.asyncio.control import AsyncControlMethods
from sbus.asyncio.link import AsyncLink
from sbus.asyncio.streams import AsyncPresence, AsyncSubscription, AsyncTap
from sbus.bus_socket import Scope, State, bus_address, parse_target
from sbus.direct_messages import direct_publication
from sbus.encoding import Data, Patterns, group_name, pattern_list, publication, to_bytes
from sbus.features import Paced
from sbus.inbox import QUEUE_BYTES, QUEUE_PACKETS, Bounds, Inbox, Overflow
from sbus.items import PRESENCE_PATTERN
from sbus.notices import OnGap, OnRefused
from sbus.operations import Deadline
from sbus.protocol import controls
from sbus.protocol.credentials import Peer
from sbus.protocol.keys import text_of
from sbus.protocol.memberships import stored_pattern
from sbus.session import Session
from sbus.statistics import Statistics

if TYPE_CHECKING:
    from sbus.asyncio.last_values import AsyncLastValues
    from sbus.asyncio.store import AsyncStore


class AsyncBus(AsyncBeginning, AsyncControlMethods, AsyncBlobMethods, AsyncCallMethods, AsyncWithBlock):
    """A connection to a bus, from :meth:`AsyncBus.connect`. ``async with`` opens and closes it; if you ``await`` it instead, close it.

    A call that takes longer than the bus's ``timeout`` raises TimedOut, and its ``reason`` says so if nothing was sent. A reply that
    arrives after that is dropped: it never reaches another call. Every call raises Closed after ``close``, Disconnected, also while
    it is not connected, and TypeError, ValueError or ProtocolError for a wrong argument, before anything is sent.
    """

    # In sync:
    # A connection to a bus, from :meth:`Bus.connect`; close it, or use it in a ``with`` block.
    #
    # A call that takes longer than the bus's ``timeout`` raises TimedOut, and its ``reason`` says so if nothing was sent. A reply that
    # arrives after that is dropped: it never reaches another call. Every call raises Closed after ``close``, Disconnected, also while
    # it is not connected, and TypeError, ValueError or ProtocolError for a wrong argument, before anything is sent.
    #
    # After fork(2) the connection stays with the parent process. In the child, calls raise ForkedError; with ``reconnect``, a ``Bus``
    # connects again and gets the subscriptions, but not what waited in them. An ``AsyncBus`` always raises ForkedError there.
    #
    # Set ``reconnect`` or ``background`` in a program that runs for a long time. Such a ``Bus``, and every ``AsyncBus``, imports all of its
    # modules when it connects. Any other ``Bus`` imports some at their first use, so after an upgrade of the package it can mix two
    # versions.
    #
    # A ``Bus`` works after ``gevent.monkey.patch_all()``, and other greenlets run while it waits. The exception is the address of a
    # descriptor, at which limits of time have no effect then. eventlet is not supported: a call that waits raises AttributeError. An
    # ``AsyncBus`` works in the loop of asyncio and in that of uvloop.

    def __init__(self, link: AsyncLink | None = None, *, pace: bool = False) -> None:
        self._link = made_link(link, AsyncLink, type(self).__name__)
        self._session = self._link.session
        self._is_to_pace = pace
        self._store: AsyncStore | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._link.state}: {self._link.target.text}>"

    @classmethod
    def connect(
        cls,
        address: str | os.PathLike[str] | None = None,
        *,
        scope: Scope | None = None,
        timeout: float | None = 30.0,
        reconnect: bool = False,
        queue_packets: int = QUEUE_PACKETS,
        queue_bytes: int = QUEUE_BYTES,
        overflow: Overflow = Overflow.BLOCK,
        separator: bytes = b"/",
        batching: bool = True,
        pace: bool = False,
        background: bool = False,
        gather: bool = False,
        name: str = "",
    ) -> Self:
        """Connect to the bus that :func:`~sbus.bus_address` chooses. ``AsyncBus`` connects at ``async with`` or ``await``.

        *timeout* in seconds limits every call except ``receive``; None and infinity mean no limit. With *reconnect*, a lost connection is
        made again, by the next call of a ``Bus`` and in the background by an ``AsyncBus``, with delays of up to 5 s between attempts; each
        subscription then yields ``Reconnected``. The first connection is attempted once. *queue_packets*, *queue_bytes* and *overflow*
        apply to each subscription; see ``Overflow``. *separator* must be that of the bus. Without *batching*, each message is received and
        sent in a packet of its own. With *pace*, every message of this connection waits for slow recipients, as if published with ``wait``.
        With *background*, a thread of a ``Bus`` reads all the time, also while the program is busy, and connects again at once; an
        ``AsyncBus`` reads whenever its loop runs. *name* has at most 64 bytes. It is a label for people, shown by ``sbusctl connections``
        and ``top``, and proves nothing.

        With *gather*, a ``Bus`` gathers messages that are published within 20 us after another, as in ``coalesce``, and sends them
        after at most 1 ms, from a thread if necessary. It sends them before anything that waits, such as a receipt or ``ping``, and
        also at the end of the program, but not if that ends by a signal or ``os._exit``. While another thread computes, the interpreter
        can add its switch interval, 5 ms. An ``AsyncBus`` always gathers.

        Raises:
            NoBus: nothing listens at the address, or the bus does not accept the connection: this user has too many, for example.
            TimedOut: the bus does not respond.
            BadAddressError: the address is malformed, or it is a descriptor and *reconnect* is set.
            Unsupported: the bus does not know *pace*.
            ProtocolError: *name* is too long or not printable.
        """
        limit = check_connection(timeout, separator)
        target = parse_target(bus_address(address, scope=scope), reconnect=reconnect)
        session = Session(separator, Bounds(queue_packets, queue_bytes, overflow), batching=batching)
        operations.set_name(session, name)
        return begin(cls(make_link(target, session, limit, reconnect=reconnect, background=background, gather=gather), pace=pace))

    @overload
    async def publish(
        self, key: str | bytes, payload: Data = ..., *, receipt: Literal[False] = ..., wait: bool = ..., to: int | None = ...
    ) -> None: ...

    @overload
    async def publish(
        self, key: str | bytes, payload: Data = ..., *, receipt: Literal[True], wait: bool = ..., to: int | None = ...
    ) -> int | None: ...

    async def publish(
        self, key: str | bytes, payload: Data = b"", *, receipt: bool = False, wait: bool = False, to: int | None = None
    ) -> int | None:
        """Send *payload* to every client with a pattern that matches *key*. A str is encoded in UTF-8.

        Blocks while the socket is full. After an error nothing was sent. If the bus refuses the message, ``on_refused`` is called with the
        refusal, or the next ``ping`` raises it. An ``AsyncBus`` sends a single message at once. Messages that closely follow it leave
        together: at the end of the loop's iteration, when they are 32 KiB, or by ``flush``.

        With *receipt*, wait for the receipt of the bus, and return the number of connections that the message was delivered to or is
        queued for; a refusal is raised at once, and after TimedOut or AnswerLost the message may have been sent. Returns None if the
        key is private and not this client's: the bus then does not disclose whether there were recipients.

        With *wait*, the message waits for slow recipients instead of being discarded: the bus stops reading from this connection until
        they have room. Publishing is then as fast as they read, and other requests of this connection wait too. Recipients of the same
        user can block it for 5 s, and those of another user for 100 ms of each second, unless configured otherwise; after that
        messages are discarded. Returns when the kernel has the message; ``ping`` returns when the bus has routed it. Messages keep
        their order, with *wait* or without. The first message with *wait* costs a request to the bus.

        With *to*, the number of a connection such as ``Peer.connection``, only that connection can get the message, if one of its patterns
        matches. This needs the right ``deliver``; otherwise the bus refuses the message.

        Raises:
            PayloadTooLarge: the packet is longer than this connection can send.
            ProtocolError: *key* has a NUL, or no connection has the number *to*.
            TimedOut: the socket was full for too long, or the receipt did not arrive.
            RemoteRefusal, AnswerLost: only with *receipt*.
            Unsupported: *wait* was given, and the bus does not know pacing; nothing was sent.
        """
        packet = publication(key, payload) if to is None else direct_publication(to, publication(key, payload))
        if wait:
            if not self._session.pacing.is_known:
                await self._link.run(operations.check_pacing(self._session, self._link.timeout))
            packet = Paced(packet)
        if receipt:
            return await self._link.run(operations.publish(self._session, packet, key, self._link.timeout))
        if not self._link.send_now(packet):  # nearly always sent now, which needs no second call
            await self._link.send_later(packet)
        return None

    @asynccontextmanager
    async def coalesce(self) -> AsyncIterator[None]:
        """Send messages that are published within ``with`` many in a packet: each small message then costs a third of the time.

        Gathered messages are sent when they are 32 KiB, before anything that waits for a response, and at the end. A ``Bus`` also sends
        them when something is published 1 ms or more after the first of them, and before it waits for anything; an ``AsyncBus``
        sends them 1 ms after the first. Until then they are only in this process. If the bus does not take batches, or without
        ``batching``, each message is sent at once. Messages of ``tell`` keep their place in the order. At the end it raises what
        ``flush`` raises.
        """
        self._link.begin_gathering()
        try:
            yield
        finally:
            await self._link.end_gathering()

    async def flush(self) -> None:
        """Send everything that waits in this process; on return the kernel has it. ``ping`` returns when the bus has also routed it.

        Raises TimedOut if the socket was full for too long: the rest still waits. Raises Disconnected or Closed without a connection.
        """
        await self._link.flush()

    def subscribe(
        self,
        *patterns: Patterns,
        group: str | bytes | None = None,
        last: bool = False,
        on_gap: OnGap | None = None,
        blobs: bool = False,
    ) -> AsyncSubscription:
        """Subscribe to *patterns*, at least one, or lists of them.

        When the subscription has begun, the bus has accepted all, and no message is missed. A subscription of a ``Bus`` has begun on
        return, one of an ``AsyncBus`` begins at ``async with`` or ``await``. Iteration over it yields messages. Where some are missing,
        *on_gap* is called with a ``Gap``, ``Reconnected`` or ``Replaced``. By default that is logged, and with ``raise_missing`` it ends
        the iteration. A PatternWarning names patterns with a wildcard at a wrong place, and those with wildcards of MQTT or NATS.

        With *last*, it begins with last values of sbus-store(8), again after a gap. One may come twice; the last of a key is the newest.
        With *group*, the subscription is a member of a queue group: of all members of this user with that name and a matching pattern,
        one gets each message. The bus chooses the connection that has the least to read; of several members on one connection, the one
        with the fewest ``pending`` items gets the message. If a member ends, other members get its queue in the bus, and on the same
        connection its ``pending`` messages. The name has 1 to 64 bytes. Other subscriptions get every message as usual. An
        ``AsyncBus``, and a ``Bus`` with *background*, read ahead, so a busy member gets as many messages as an idle one. To prevent
        this, subscribe on a connection of its own with *queue_packets* 1. What the socket of a member has accepted is lost if it
        disconnects.

        With *blobs*, a message that refers to a blob arrives as a ``BlobMessage``, with its content in ``blob``. If the blob has ended
        before this client has got it, a ``BlobGone`` is yielded instead, which is a ``Gap``, and ``statistics.blobs_gone`` counts it.

        Raises:
            Unsupported: *group* was given, and the bus does not know queue groups.
            StoreNotRunning, StoreError: *last* was given.
            ValueError: both *last* and *blobs* were given.
            ProtocolError: a pattern has a NUL, or is a malformed private key. It was not sent.
            RemoteRefusal: the bus refused a pattern; none of them is subscribed to. If its code is EACCES, as for private keys of others,
                the bus has closed the connection with all its subscriptions, until *reconnect* makes it again.
            AnswerLost: packets for this client were lost, perhaps a refusal among them.
            InboxFull: the bus could not be asked.
        """
        check_callable(on_gap, "on_gap")
        if blobs and last:
            raise ValueError("last and blobs cannot be combined: subscribe twice")
        inbox = self._session.new_inbox(pattern_list(patterns, self._session.separator, group))
        if blobs:
            return begin(AsyncBlobSubscription(self._link, inbox, on_gap, self._blob_socket()))
        return begin(self._with_last_values(inbox, on_gap) if last else AsyncSubscription(self._link, inbox, on_gap))

    async def unsubscribe(self, pattern: str | bytes, *, group: str | bytes | None = None) -> None:
        """Remove one instance of *pattern*, of a member of *group* if given, from the newest subscription that has it.

        A subscription without patterns ends. Raises NotSubscribed if no subscription has it.
        """
        self._link.change(partial(self._session.unsubscribe, stored_pattern(to_bytes(pattern, "pattern"), group_name(group))))

    async def whoami(self) -> str:
        """Return this client's credentials as the bus sees them: ``!/cred/<gid>/<uid>/<pid>``, the prefix of its private keys.

        Raises what ``control`` raises.
        """
        return text_of(await self.control(controls.WHOAMI))

    async def ping(self) -> float:
        """Return the seconds of a round trip through the bus. On return everything that was sent before has been routed.

        Raises:
            RemoteRefusal: the bus refused an earlier packet that no call waited for, such as a publication.
            AnswerLost, TimedOut, Disconnected, InboxFull: the response did not arrive.
        """
        return await self._link.run(operations.ping(self._session, self._link.timeout))

    @property
    def address(self) -> Coroutine[None, None, str]:
        """The connection's own address, ``!/conn/<id>/``: keys under it reach only this connection. It changes with a reconnection.

        The bus is asked once. With an ``AsyncBus``, await it. Raises what ``control`` raises.
        """
        return self._link.run(operations.address(self._session, Deadline("requesting the address", self._link.timeout)))

    async def members(self, key: str | bytes) -> tuple[Peer, ...]:
        """Return the connections that a message with *key* would reach now, by ascending connection number.

        Raises RemoteRefusal if this client may not publish to *key*, or see its members; AnswerLost, TimedOut, InboxFull.
        """
        deadline = Deadline(f"listing the members of {key!r}", self._link.timeout)
        return await self._link.run(operations.members(self._session, to_bytes(key), deadline))

    def presence(self) -> AsyncPresence:
        """Subscribe to connections that begin and end, and to their subscriptions, as far as this client may see them.

        Begin it by ``with`` or ``async with``. To know the present members: begin, then ask for the members, then apply the events
        to them, in this order.
        """
        return AsyncPresence(self.subscribe(PRESENCE_PATTERN))

    async def tap(self, pattern: str | bytes = b"") -> AsyncTap:
        """Return the bus's traffic whose keys match *pattern*, private ones included. On return the tap has begun.

        Only for owners of the bus and users that its configuration permits. Records that this client is too slow for are lost, and
        reported as ``Gap``.

        Raises:
            RemoteRefusal: this user may not tap the bus.
            ValueError: the connection already has a tap.
            AnswerLost, TimedOut, InboxFull: the bus could not be asked.
        """
        return AsyncTap(self._link, await self._link.run(operations.tap(self._session, to_bytes(pattern, "pattern"), self._link.timeout)))

    @property
    def store(self) -> AsyncStore:
        """The messages and jobs that sbus-store(8) keeps on disk."""
        if self._store is None:
            from sbus.asyncio.store import AsyncStore  # noqa: PLC0415 - most programs use no store

            self._store = AsyncStore(self)
        return self._store

    @property
    def state(self) -> State:
        """``connected``, ``reconnecting``, or ``closed``: then every call raises the reason."""
        return self._link.state

    @property
    def on_refused(self) -> OnRefused | None:
        """The function that is called with each ``RemoteRefusal`` that no call waited for, such as that of a publication; None logs them.

        It is called by the next ``receive`` or iteration of any subscription, which continues, or by ``close``; an exception that it
        raises is raised there. ``ping`` raises the oldest such refusal itself.
        """
        return self._session.refusals.handler

    @on_refused.setter
    def on_refused(self, handler: OnRefused | None) -> None:
        """Set the function."""
        check_callable(handler, "on_refused")
        self._session.refusals.handler = handler

    @property
    def statistics(self) -> Statistics:
        """The counts up to now, also after the bus is closed."""
        statistics = self._session.statistics()
        if (caller := self._caller) is not None:
            statistics = replace(statistics, stray_answers=caller.requests.strays, unwatched_callees=caller.requests.unwatched)
        return replace(statistics, requests=dict(self._dispatcher.counts)) if self._dispatcher is not None else statistics

    def fileno(self) -> int:
        """Return the descriptor to poll for reading; it changes with a reconnection. Raises Closed or Disconnected without a connection.

        Duty: poll does not report packets that have already been read, so before you poll, read everything with ``receive(timeout=0)``.
        """
        return self._link.fileno()

    async def close(self) -> None:
        """Close the connection and end all subscriptions. Earlier messages can still be received. Harmless when already closed.

        Messages that still wait in this process are sent first, if there is room for them in time; otherwise ``statistics.unsent``
        counts them.
        """
        self._close_blobs()
        await self._link.close()

    async def __aenter__(self) -> Self:
        return await self._begun()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def _with_last_values(self, inbox: Inbox, on_gap: OnGap | None) -> AsyncLastValues:
        """Return a subscription that begins with last values."""
        from sbus.asyncio.last_values import AsyncLastValues  # noqa: PLC0415 - most programs use no store

        return AsyncLastValues(self._link, inbox, on_gap, self.store)

    async def _begun(self) -> Self:
        """Connect, unless that has been done."""
        is_new = not self._link.is_open and not self._link.target.is_connected
        await self._link.open()
        self._link.push()
        try:
            if is_new:
                await self._link.run(operations.admission(self._session, self._link.target.text, self._link.timeout))
            if self._is_to_pace:
                await self._link.run(operations.pace_all(self._session, self._link.timeout))
        except BaseException:
            await self._link.close()
            raise
        self._is_to_pace = False
        return self
