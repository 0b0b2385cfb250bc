"""The bus for programs that wait: :class:`Bus`. ``aio`` is the same for asyncio.

A ``Bus`` belongs to one thread. It reads its socket only inside a call that waits: ``receive`` and iteration, ``subscribe``,
``whoami``, ``ping``, ``control``, and ``publish`` or ``flush`` when the socket is full. What comes for other subscriptions meanwhile
waits in their queues. With ``Overflow.BLOCK``, the default, a full queue stops the reading; then such a call raises ``InboxFull``,
since nobody but its caller can make room. The default bounds are four times the bus's own, so only a subscription left unread gets
there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, overload

from sbusd.client.address import Scope, bus_address
from sbusd.client.bus_queries import ReceiptCall
from sbusd.client.connection import parse_target
from sbusd.client.deadline import Deadline
from sbusd.client.encoding import control_key, pattern_list, publication, to_bytes
from sbusd.client.inbox import QUEUE_BYTES, QUEUE_PACKETS, Bounds, Inbox, Overflow
from sbusd.client.members import members, own_address
from sbusd.client.pacing import Paced
from sbusd.client.pending_replies import Call
from sbusd.client.presence import PRESENCE_PATTERN
from sbusd.client.rpc.calls import CALL_SECONDS, CALL_TRIES, Answer, Caller, Invocation, Outcome
from sbusd.client.rpc.group_call import Sweep
from sbusd.client.session import Session
from sbusd.client.statistics import Statistics
from sbusd.client.sync.link import SyncLink
from sbusd.client.sync.streams import Presence, Subscription, Tap
from sbusd.client.tap import begin_tap, end_tap
from sbusd.protocol import controls
from sbusd.protocol.envelope import parse_envelope
from sbusd.protocol.packets import control_packet
from sbusd.protocol.peers import Peer

if TYPE_CHECKING:
    from sbusd.client.rpc.caller_access import Allow, Twins
    from sbusd.client.rpc.service import H, Reception


class Bus:
    """A connection to a bus, from :meth:`Bus.connect`; close it, or use it with ``with``.

    A call that takes longer than the bus's ``timeout`` raises TimedOut. What was on its way then is dropped when it comes late:
    an answer never reaches another call.
    """

    def __init__(self, link: SyncLink) -> None:
        self._link = link
        self._session = link.session
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
        """Connect to a bus; which one, :func:`~sbusd.client.address.bus_address` says.

        *timeout* in seconds bounds every call but ``receive``; None is for ever. With *reconnect*, a connection that is lost is made
        anew by the next call, after delays of up to 5 s between tries; each subscription then yields ``Reconnected``. The first
        connection is tried once. The queue's bounds and *overflow* hold for each subscription; see ``Overflow``. *separator* is the bus's.
        Without *batching*, each message comes and leaves in a packet of its own, as with a bus that knows nothing else.
        With *pace*, every message of this connection waits for slow recipients, as one that is published with ``wait``.

        Raises:
            NoBus: nobody is there.
            BadAddressError: the address is malformed, or is a descriptor and *reconnect* is set.
            Unsupported: the bus does not know *pace*.
            ValueError: a bound is below 1.
        """
        target = parse_target(bus_address(address, scope=scope), reconnect=reconnect)
        session = Session(separator, Bounds(queue_packets, queue_bytes, overflow), batching=batching)
        bus = cls(SyncLink(target, session, timeout, reconnect=reconnect))
        if pace:
            bus._begin_pacing()
        return bus

    @overload
    def publish(self, key: str | bytes, payload: bytes | str = ..., *, receipt: Literal[False] = ..., wait: bool = ...) -> None: ...

    @overload
    def publish(self, key: str | bytes, payload: bytes | str = ..., *, receipt: Literal[True], wait: bool = ...) -> int | None: ...

    def publish(self, key: str | bytes, payload: bytes | str = b"", *, receipt: bool = False, wait: bool = False) -> int | None:
        """Send *payload* to every client with a pattern that matches *key*. A str is sent in UTF-8.

        Waits while the socket is full; after an error nothing was sent. A refusal comes later, at the next receive or ping.
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
            self._check_pacing()
            packet = Paced(packet)
        if not receipt:
            self._link.send(packet)
            return None
        calls: list[ReceiptCall] = []

        def start() -> list[ReceiptCall]:
            calls.append(self._session.publish(packet))
            return calls

        self._link.call(f"the receipt for {key!r}", start)
        calls[0].result()
        return calls[0].recipients

    @contextmanager
    def coalesce(self) -> Iterator[None]:
        """Let what is published within ``with`` leave many in a packet, which costs a third of the time for each small message.

        What is gathered leaves when it is 32 KiB, when something is published 1 ms or more after the first of it, before this
        object waits for anything, and at the end; between that it is in this process alone. With a bus that does not take batches, or
        without ``batching``, each message leaves at once. What is told by ``tell`` keeps its place in the order.

        Raises, at the end, what ``flush`` raises.
        """
        self._link.begin_gathering()
        try:
            yield
        finally:
            self._link.end_gathering()

    def flush(self) -> None:
        """Send all that waits in this process; on return the kernel has it. ``ping`` returns when the bus has routed it, too.

        Raises:
            TimedOut: the socket was full for too long; what is left still waits.
            Disconnected, Closed: there is no connection.
        """
        self._link.flush()

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

        self._link.call("the response to a ping", start)
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
            calls.append(self._session.control(control_key(key), None if payload is None else to_bytes(payload)))
            return calls

        self._link.call(f"the response to {key!r}", start)
        return calls[0].result()

    def tell(self, key: str | bytes, payload: bytes | str | None = None) -> None:
        """Send a control message that is not answered, such as ``echo/off``. A refusal comes later, at the next receive or ping.

        A mode is set again on each new connection.

        Raises what ``publish`` raises.
        """
        name = control_key(key)
        packet = control_packet(name, None if payload is None else to_bytes(payload))
        self._link.send(packet)
        self._session.remember_mode(name, packet)

    @property
    def address(self) -> bytes:
        """The connection's own address, ``!/conn/<id>/``: keys under it reach this connection alone. Another one after a reconnection.

        It is asked for once. Raises what ``control`` raises.
        """
        return self._link.run(own_address(self._session, Deadline("requesting the address", self._link.timeout)))

    def members(self, key: str | bytes) -> tuple[Peer, ...]:
        """Return who would get a message with *key* now, in the order of their numbers.

        Raises:
            RemoteRefusal: this client may not publish to *key*, or not know its members.
            AnswerLost, TimedOut, Disconnected: the answer did not come.
        """
        return self._link.run(members(self._session, to_bytes(key), Deadline(f"listing the members of {key!r}", self._link.timeout)))

    def presence(self) -> Presence:
        """Subscribe to who comes and goes, and to what they subscribe to, as far as this client may know; begin with ``with``.

        To know who is there: begin, then ask for the members, then apply the events to them; never the other way round.
        """
        return Presence(self.subscribe(PRESENCE_PATTERN))

    def tap(self, pattern: str | bytes = b"") -> Tap:
        """Return what the bus tells of its traffic, by the keys that match *pattern*, secret ones too; on return it has begun.

        For owners of the bus, and those whom its configuration lets. What this client is too slow for is lost to it, and told as ``Gap``.

        Raises:
            RemoteRefusal: this user may not.
            ValueError: the connection has a tap already.
            AnswerLost, TimedOut, Disconnected: the bus could not be asked.
        """
        made: list[tuple[Inbox, Call]] = []
        try:
            self._link.call("the tap", lambda: begin_tap(self._session, to_bytes(pattern), made))
            made[0][1].result()
        except BaseException:
            for inbox, _ in made:
                end_tap(self._session, inbox)
            raise
        return Tap(self._link, made[0][0])

    def call(
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
        caller, request = self._begin_calls(), Invocation(command, to_bytes(data), timeout, twin, tries)
        deadline = request.deadline()
        outstanding = self._link.run(caller.open(request, deadline, member))
        return self._link.run(caller.wait(request, outstanding, deadline))

    def call_all(self, command: str, data: bytes | str = b"", *, timeout: float | None = CALL_SECONDS) -> Iterator[Outcome]:
        """Have each service of *command* run it on *data*, and yield what came of each, in the order in which that is known.

        Those are called who are there when it begins, each at its own address, and each is waited for up to *timeout* seconds on its
        own; an ``Outcome`` has the answer or the error. Nothing is yielded where nobody serves it.

        Raises what ``members`` raises, and ValueError where *command* cannot be one.
        """
        caller, request = self._begin_calls(), Invocation(command, to_bytes(data), timeout)
        sweep = Sweep(caller, request)
        try:
            while (outcome := self._link.run(sweep.next())) is not None:
                yield outcome
        finally:
            sweep.close()

    def service(self, command: str, *, allow: Allow | None = None, twins: Twins | None = None) -> Callable[[H], H]:
        """Return the decorator of a function that runs *command* for callers; :meth:`serve` serves all that have been decorated.

        The function gets a ``Request`` and returns bytes, text or None. With *allow*, only those users and groups may
        call; others are told so. With *twins*, other hosts may call too, and never otherwise. A ``ServiceError`` that it raises tells
        the caller its words; of any other exception the caller gets one line, and the log the traceback.

        Raises:
            ValueError: *command* cannot be one, or has been decorated already.
        """
        reception = self._begin_services()

        def decorate(handler: H) -> H:
            reception.add(command, handler, allow, twins)
            return handler

        return decorate

    def serve(self, *, ready: Callable[[], None] | None = None) -> None:
        """Serve the commands of :meth:`service` until the bus is closed; *ready* is called when callers find them.

        Users take turns, whoever sent more. One handler runs at a time, in this thread. Who still waits at
        the end is told that the service has stopped. From now on messages come with their senders.

        Raises:
            RemoteRefusal: the bus does not let this client serve one of the commands.
            ValueError: there is none.
            Disconnected: the bus ended the connection.
        """
        from sbusd.client.sync.server import Server  # noqa: PLC0415 - most programs serve nothing

        Server(self._link, self._begin_services()).run(ready)

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

    def close(self) -> None:
        """End the connection and all subscriptions. What came before can still be received. Harmless when done already.

        What ``coalesce`` has gathered leaves first, if there is room for it in time; else ``statistics.unsent`` counts it.
        """
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _begin_pacing(self) -> None:
        """Let every message wait. Closes the connection, and raises Unsupported, if the bus does not know that."""
        try:
            self._check_pacing()
            self._session.pacing.always = True
            self._session.pacing.prepare(b"")
            self._link.flush()
        except BaseException:
            self._link.close()
            raise

    def _check_pacing(self) -> None:
        """Ask once whether the bus knows pacing. Raises Unsupported if it does not."""
        if not self._session.pacing.is_known:
            calls: list[Call] = []

            def start() -> list[Call]:
                calls.append(self._session.ask_pacing())
                return calls

            self._link.call("enabling pacing", start)
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
            from sbusd.client.rpc.service import Reception  # noqa: PLC0415

            self._reception = Reception(read_envelope)
        return self._reception
