"""The bus for asyncio: :class:`AsyncBus`. ``sync`` is the same for programs that wait.

An ``AsyncBus`` belongs to one event loop; any number of its tasks may use it. It reads whenever the loop runs and no subscription is
full. With ``Overflow.BLOCK``, the default, a full one stops the reading, for answers and other subscriptions too, until its task
has received some; a task that waits for an answer while it alone could empty the full subscription waits until its time-out.

Cancelling any call is safe: a publication was then sent whole or not at all, an item that was not returned is still there, an
answer that comes late is dropped, and a subscription that was not returned is taken back.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self, overload

from sbusd.client.address import Scope, bus_address
from sbusd.client.asyncio.link import AioLink
from sbusd.client.asyncio.server import AsyncServer
from sbusd.client.asyncio.streams import AsyncPresence, AsyncSubscription, AsyncTap
from sbusd.client.bus_queries import ReceiptCall
from sbusd.client.connection import parse_target
from sbusd.client.deadline import Deadline
from sbusd.client.encoding import control_key, pattern_list, publication, to_bytes
from sbusd.client.inbox import QUEUE_BYTES, QUEUE_PACKETS, Bounds, Inbox, Overflow
from sbusd.client.members import members, own_address
from sbusd.client.pacing import Paced
from sbusd.client.pending_replies import Call
from sbusd.client.presence import PRESENCE_PATTERN
from sbusd.client.rpc.caller_access import Allow, Twins
from sbusd.client.rpc.calls import CALL_SECONDS, CALL_TRIES, Answer, Caller, Invocation, Outcome
from sbusd.client.rpc.group_call import Sweep
from sbusd.client.rpc.service import H, Reception
from sbusd.client.session import Session
from sbusd.client.statistics import Statistics
from sbusd.client.tap import begin_tap, end_tap
from sbusd.protocol import controls
from sbusd.protocol.envelope import parse_envelope
from sbusd.protocol.packets import control_packet
from sbusd.protocol.peers import Peer


class AsyncBus:
    """A connection to a bus, from :meth:`AsyncBus.connect`.

    It opens with ``async with``, which also closes it, or with ``await``, and then you close it.

    A call that takes longer than the bus's ``timeout`` raises TimedOut. What was on its way then is dropped when it comes late:
    an answer never reaches another call.
    """

    def __init__(self, link: AioLink) -> None:
        self._link = link
        self._session = link.session
        self._is_to_pace = False
        self._caller: Caller | None = None
        self._reception: Reception | None = None

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
        batching: bool = True,
        pace: bool = False,
    ) -> Self:
        """Return a bus to open; which one, :func:`~sbusd.client.address.bus_address` says.

        *timeout* in seconds bounds every call but ``receive``; None is for ever. With *reconnect*, a connection that is lost is made
        anew in the background, with delays of up to 5 s between tries; each subscription then yields ``Reconnected``. The first
        connection is tried once. The queue's bounds and *overflow* hold for each subscription; see ``Overflow``. *separator* is the bus's.
        Without *batching*, each message comes and leaves in a packet of its own, as with a bus that knows nothing else.
        With *pace*, every message of this connection waits for slow recipients, as one that is published with ``wait``.

        Raises:
            NoBus: nobody is there; raised by ``async with`` and ``await``.
            BadAddressError: the address is malformed, or is a descriptor and *reconnect* is set.
            Unsupported: the bus does not know *pace*; raised likewise.
            ValueError: a bound is below 1.
        """
        target = parse_target(bus_address(address, scope=scope), reconnect=reconnect)
        session = Session(separator, Bounds(queue_packets, queue_bytes, overflow), batching=batching)
        bus = cls(AioLink(target, session, timeout, reconnect=reconnect))
        bus._is_to_pace = pace
        return bus

    @overload
    async def publish(self, key: str | bytes, payload: bytes | str = ..., *, receipt: Literal[False] = ..., wait: bool = ...) -> None: ...

    @overload
    async def publish(self, key: str | bytes, payload: bytes | str = ..., *, receipt: Literal[True], wait: bool = ...) -> int | None: ...

    async def publish(self, key: str | bytes, payload: bytes | str = b"", *, receipt: bool = False, wait: bool = False) -> int | None:
        """Send *payload* to every client with a pattern that matches *key*. A str is sent in UTF-8.

        A message that is published alone leaves at once; those that follow it closely leave together, at the end of the loop's
        iteration, when they are 32 KiB, or by ``flush``. Waits while the socket is full and so much waits; after an error nothing
        was sent. A refusal comes later, at the next receive or ping.
        With *receipt* it waits for the bus's word, and returns how many connections were handed the message, or have it waiting;
        a refusal is raised then, and after TimedOut or AnswerLost it may have been sent. Of a secret key that is not for this client
        the bus does not tell whether anybody got it: then it returns None.

        With *wait* the message waits for slow recipients, where without it they lose it: the bus reads nothing from this connection
        until they have room. So publishing goes as fast as they read, and what this connection asks meanwhile waits too. Recipients
        of this user can block it for 5 s, and those of another for 100 ms of each second, unless configured otherwise; after that they
        lose messages all the same. It returns when the kernel has the message; ``ping`` returns when the bus has routed it.
        Messages keep their order, whether they wait or not; the first one that waits costs a question to the bus.

        Raises:
            PayloadTooLarge: the packet is longer than this connection can send.
            ProtocolError: *key* has a NUL.
            TimedOut: the socket was full for too long, or the receipt did not come.
            Disconnected: the bus ended the connection.
            RemoteRefusal, AnswerLost: with *receipt* alone.
            Unsupported: with *wait*, of a bus that does not know pacing; nothing was sent.
        """
        packet = publication(key, payload)
        if wait:
            await self._check_pacing()
            packet = Paced(packet)
        if not receipt:
            writer = self._link.writer
            if not writer.send_now(packet):  # nearly always done, and spares a coroutine
                await writer.send_later(packet)
            return None
        calls: list[ReceiptCall] = []

        def start() -> list[ReceiptCall]:
            calls.append(self._session.publish(packet))
            return calls

        await self._link.call(f"the receipt for {key!r}", start)
        calls[0].result()
        return calls[0].recipients

    @asynccontextmanager
    async def coalesce(self) -> AsyncIterator[None]:
        """Let what is published within ``async with`` leave many in a packet, also beyond one iteration of the loop.

        What is gathered leaves when it is 32 KiB, 1 ms after the first of it, before anything that waits for an answer, and at the end.
        With a bus that does not take batches, or without ``batching``, each message leaves at once.

        Raises, at the end, what ``flush`` raises.
        """
        self._link.writer.begin_gathering()
        try:
            yield
        finally:
            await self._link.writer.end_gathering()

    async def flush(self) -> None:
        """Send all that waits in this process; on return the kernel has it. ``ping`` returns when the bus has routed it, too.

        Raises:
            TimedOut: the socket was full for too long; what is left still waits.
            Disconnected, Closed: there is no connection.
        """
        await self._link.writer.flush()

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

        await self._link.call("the response to a ping", start)
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
            calls.append(self._session.control(control_key(key), None if payload is None else to_bytes(payload)))
            return calls

        await self._link.call(f"the response to {key!r}", start)
        return calls[0].result()

    async def tell(self, key: str | bytes, payload: bytes | str | None = None) -> None:
        """Send a control message that is not answered, such as ``echo/off``. A refusal comes later, at the next receive or ping.

        A mode is set again on each new connection.

        Raises what ``publish`` raises.
        """
        name = control_key(key)
        packet = control_packet(name, None if payload is None else to_bytes(payload))
        await self._link.writer.send(packet)
        self._session.remember_mode(name, packet)

    @property
    def address(self) -> Coroutine[None, None, bytes]:
        """The connection's own address, ``!/conn/<id>/``: keys under it reach this connection alone. Another one after a reconnection.

        Await it; the bus is asked once. Raises what ``control`` raises.
        """
        return self._link.run(own_address(self._session, Deadline("requesting the address", self._link.timeout)))

    async def members(self, key: str | bytes) -> tuple[Peer, ...]:
        """Return who would get a message with *key* now, in the order of their numbers.

        Raises:
            RemoteRefusal: this client may not publish to *key*, or not know its members.
            AnswerLost, TimedOut, Disconnected: the answer did not come.
        """
        return await self._link.run(members(self._session, to_bytes(key), Deadline(f"listing the members of {key!r}", self._link.timeout)))

    def presence(self) -> AsyncPresence:
        """Subscribe to who comes and goes, and to what they subscribe to, as far as this client may know; begin with ``async with``.

        To know who is there: begin, then ask for the members, then apply the events to them; never the other way round.
        """
        return AsyncPresence(self.subscribe(PRESENCE_PATTERN))

    async def tap(self, pattern: str | bytes = b"") -> AsyncTap:
        """Return what the bus tells of its traffic, by the keys that match *pattern*, secret ones too; on return it has begun.

        For owners of the bus, and those whom its configuration lets. What this client is too slow for is lost to it, and told as ``Gap``.

        Raises:
            RemoteRefusal: this user may not.
            ValueError: the connection has a tap already.
            AnswerLost, TimedOut, Disconnected: the bus could not be asked.
        """
        made: list[tuple[Inbox, Call]] = []
        try:
            await self._link.call("the tap", lambda: begin_tap(self._session, to_bytes(pattern), made))
            made[0][1].result()
        except BaseException:
            for inbox, _ in made:
                end_tap(self._session, inbox)
            raise
        return AsyncTap(self._link, made[0][0])

    async def call(
        self,
        command: str,
        data: bytes | str = b"",
        *,
        timeout: float | None = CALL_SECONDS,
        member: Peer | None = None,
        twin: int | None = None,
        tries: int = CALL_TRIES,
    ) -> Answer:
        """Have a service run *command* on *data*, and return its answer. Spec: sbus-rpc(7).

        Called is whoever serves it, all of them if they are more, and the first answer counts; or *member* alone, from ``members`` or
        ``presence``. With *twin*, the service is on that other host, which the relay tries to reach again up to *tries* times.
        *timeout* is in seconds, None for ever; between hosts that is an hour. The answer's ``callee`` is who answered, by the bus's
        word. From the first call on messages come with their senders.

        Raises:
            NoRecipient: nobody serves it; at once.
            PeerDisconnected: who was to answer has gone; at once. It may have been run.
            CallTimeout: no answer in time. It may have been run; the answer is dropped if it comes late.
            RemoteError: the service answered with an error.
            RemoteRefusal: the bus does not let this client call it.
            ValueError: *command*, *twin* or *tries* cannot be one, or *member* and *twin* are both given.
            PayloadTooLarge, AnswerLost, Disconnected: as elsewhere.
        """
        if member is not None and twin is not None:
            raise ValueError("cannot call both a member and a remote host: give member or twin, not both")
        return await self._invoke(Invocation(command, to_bytes(data), timeout, twin, tries), member)

    async def call_all(self, command: str, data: bytes | str = b"", *, timeout: float | None = CALL_SECONDS) -> AsyncIterator[Outcome]:
        """Have each service of *command* run it on *data*, and yield what came of each, in the order in which that is known.

        Those are called who are there when it begins, each at its own address, and each is waited for up to *timeout* seconds on its
        own; an ``Outcome`` has the answer or the error. Nothing is yielded where nobody serves it.

        Raises what ``members`` raises, and ValueError where *command* cannot be one.
        """
        caller, request = self._begin_calls(), Invocation(command, to_bytes(data), timeout)
        sweep = Sweep(caller, request)
        try:
            while (outcome := await self._link.run(sweep.next())) is not None:
                yield outcome
        finally:
            sweep.close()

    def service(self, command: str, *, allow: Allow | None = None, twins: Twins | None = None) -> Callable[[H], H]:
        """Return the decorator of a function that runs *command* for callers; :meth:`serve` serves all that have been decorated.

        The function gets a ``Request`` and returns bytes, text or None, or is a coroutine function that does. With *allow*, only those
        users and groups may call; others are told so. With *twins*, other hosts may call too, and never otherwise. A ``ServiceError``
        that it raises tells the caller its words; of any other exception the caller gets one line, and the log the traceback.

        Raises:
            ValueError: *command* cannot be one, or has been decorated already.
        """
        reception = self._begin_services()

        def decorate(handler: H) -> H:
            reception.add(command, handler, allow, twins)
            return handler

        return decorate

    async def serve(self, *, ready: Callable[[], None] | None = None) -> None:
        """Serve the commands of :meth:`service` until the bus is closed; *ready* is called when callers find them.

        Users take turns, whoever sent more. Up to 64 coroutines run at once; plain functions hold up the loop. Who still waits at
        the end is told that the service has stopped. From now on messages come with their senders.

        Raises:
            RemoteRefusal: the bus does not let this client serve one of the commands.
            ValueError: there is none.
            Disconnected: the bus ended the connection.
        """
        await AsyncServer(self._link, self._begin_services()).run(ready)

    @property
    def statistics(self) -> Statistics:
        """The counts up to now; the bus may be closed."""
        statistics = self._session.statistics()
        if (caller := self._caller) is not None:
            statistics = replace(statistics, stray_answers=caller.table.strays, unwatched_callees=caller.table.unwatched)
        return replace(statistics, requests=dict(self._reception.counts)) if self._reception is not None else statistics

    def fileno(self) -> int:
        """Return the descriptor to poll for reading; a new one after a reconnection.

        Duty: what has been read already does not show on it, so before you poll take all there is with ``receive(timeout=0)``.

        Raises:
            Closed, Disconnected: there is none.
        """
        return self._link.fileno()

    async def close(self) -> None:
        """End the connection and all subscriptions. What came before can still be received. Harmless when done already.

        What was published leaves first, if there is room for it in time; else ``statistics.unsent`` counts it.
        """
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
        if self._is_to_pace:
            await self._begin_pacing()
        return self

    async def _invoke(self, request: Invocation, member: Peer | None = None) -> Answer:
        """Make the call *request*, and return its answer. Raises what :meth:`call` raises."""
        caller, deadline = self._begin_calls(), request.deadline()
        outstanding = await self._link.run(caller.open(request, deadline, member))
        return await self._link.run(caller.wait(request, outstanding, deadline))

    async def _begin_pacing(self) -> None:
        """Let every message wait. Closes the connection, and raises Unsupported, if the bus does not know that."""
        try:
            await self._check_pacing()
            self._is_to_pace = False
            self._session.pacing.always = True
            self._session.pacing.prepare(b"")
            await self._link.writer.flush()
        except BaseException:
            await self._link.close()
            raise

    async def _check_pacing(self) -> None:
        """Ask once whether the bus knows pacing. Raises Unsupported if it does not."""
        if not self._session.pacing.is_known:
            calls: list[Call] = []

            def start() -> list[Call]:
                calls.append(self._session.ask_pacing())
                return calls

            await self._link.call("enabling pacing", start)
            calls[0].result()

    def _begin_calls(self) -> Caller:
        """Return what calls are made with."""
        if self._caller is None:
            self._caller = Caller(self._session, parse_envelope)
        return self._caller

    def _begin_services(self) -> Reception:
        """Return what serves. The envelope's model is imported now: that is slow, and most programs serve nothing."""
        if self._reception is None:
            from sbusd.client.rpc.envelopes import read_envelope  # noqa: PLC0415

            self._reception = Reception(read_envelope)
        return self._reception
