"""Calls, step by step, for both faces: what to send, and what to wait for. No I/O. Spec: sbus-rpc(7) §3 to §6.

The packets of one call to the services of ``echo``:

::

    CMSG !/bus/members\\0rpc/echo           the members, a moment before the request; not for a command that was called before
    CMSG receipt/recipients\\0<token>       who gets it: of several services of a user, one
    MSG rpc/echo\\0<request>                one round trip up to here, and no more for a known service
    SUB !/event/disconnect/7               for each new member: watch its disconnection, and only then ask
    CMSG !/bus/members\\0!/conn/7/rpc/echo  whether it is connected and a service; a mere subscriber is not a service
    CMSG !/bus/members\\0rpc/echo           a callee that is not a member any more has disconnected

Without a service, it calls ``trigger/start/echo`` of sbus-trigger(8), and sends the request again when that has succeeded.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sbus.arguments import check_count, check_type, time_limit
from sbus.bus_calls import Call, Expects, RequestCall, members_question, parse_members
from sbus.encoding import publication
from sbus.errors import (
    CallTimeout,
    NoRecipient,
    PayloadTooLarge,
    PeerDisconnected,
    RemoteError,
    RemoteRefusal,
    SbusError,
    TimedOut,
)
from sbus.operations import Begin, Deadline, Operation, Settle, ask_members, members
from sbus.protocol import controls
from sbus.protocol.credentials import Peer, unknown_peer
from sbus.protocol.envelope import (
    MAX_TWIN,
    NUMBER_LIMITS,
    Envelope,
    command_problem,
    context_problem,
    relay_key,
    service_key,
    start_command,
)
from sbus.protocol.packets import control_packet, subscribe_packet
from sbus.rpc.cancellation import post, withdraw
from sbus.rpc.pending_requests import ANSWERS, DISCONNECT_HEAD, PeerWatch, PendingRequest, PendingRequests
from sbus.session import Session

CALL_SECONDS = 30.0
"""Default timeout of a call: the bus's own default for a blocked client. The disconnection of a service is known at once."""

CALL_TRIES = 4
"""Default number of retries for a host that cannot be reached: with the relay's default interval that is twenty seconds, which is within
``CALL_SECONDS``."""

MAX_STARTS = 3
"""Times that a call has a service started: it may end before the request arrives, for example because it was idle."""

MAX_TRIGGERS = 8
"""Connections that are asked to start a service: the trigger, and subscribers of root whose patterns match all calls."""

MAX_CONCURRENT_REQUESTS = 64
"""Requests of one group call that wait at the same time, so that a large group is neither flooded nor held in memory as a whole."""

_OWN_SERVICE = (
    "the service is on the same bus object; a handler of a Bus that calls it waits for itself: "
    "call it on another connection, or serve on an AsyncBus"
)

_ROUNDS = 3
"""Rounds of the search for the callees of a request, if the members change meanwhile."""


class Answer(bytes):
    """The response of a service. ``callee`` is the service, as verified by the bus; ``source`` is its host's number, 0 for this host."""

    callee: Peer | None = None
    source: int = 0

    @classmethod
    def of(cls, pending: PendingRequest) -> Answer:
        """Return the response of a request that succeeded."""
        made = cls(pending.answer.data)
        made.callee = pending.answerer
        made.source = pending.answer.source
        return made

    @property
    def text(self) -> str:
        """The response as text. Raises UnicodeDecodeError if it is not UTF-8."""
        return self.decode()

    def json(self) -> Any:
        """Return the value that the response has as JSON. Raises ValueError if it is not JSON."""
        return json.loads(self)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call of one member of a group: ``answer``, or else ``error``."""

    member: Peer
    answer: Answer | None
    error: SbusError | None

    def result(self) -> Answer:
        """Return the response. Raises the error."""
        if self.error is not None:
            raise self.error
        if self.answer is None:
            raise ValueError("invalid outcome: neither a response nor an error")
        return self.answer


@dataclass(frozen=True, slots=True)
class Invocation:
    """A call: the command, its data, and the time that the caller waits."""

    command: str
    data: bytes
    timeout: float | None
    twin: int | None = None
    tries: int = CALL_TRIES
    """The number of retries if *twin* cannot be reached."""
    context: str = ""
    """The trace context, a W3C traceparent; empty for none."""
    kind: ClassVar[type[PendingRequest]] = PendingRequest
    """How its responses are handled."""

    def __post_init__(self) -> None:
        check_type(self.command, str, "command", "str")
        if problem := command_problem(self.command):
            raise ValueError(f"the command {self.command!r} {problem}")
        if self.twin is not None:
            check_count(self.twin, "twin", 1, MAX_TWIN)
        check_count(self.tries, "tries", most=NUMBER_LIMITS["try"])
        check_type(self.context, str, "context", "str")
        object.__setattr__(self, "timeout", time_limit(self.timeout))
        if self.context and (problem := context_problem(self.context)):
            raise ValueError(f"the context {self.context[:300]!r} {problem}")

    @property
    def key(self) -> bytes:
        """The key that its services subscribe to."""
        return service_key(self.command) if self.twin is None else relay_key(self.twin, self.command)

    def deadline(self) -> Deadline:
        """Return the deadline of the response, if the call begins now."""
        return Deadline(f"the response to {self.command!r}", self.timeout)

    def envelope(self, uid: str, reply_to: bytes, deadline: Deadline) -> bytes:
        """Return the payload of the request, if it is sent now."""
        remaining = deadline.remaining()
        expires = 0 if remaining is None else min(max(1, math.ceil(remaining)), NUMBER_LIMITS["exp"])
        envelope = Envelope(self.command, uid, self.data, reply_to.decode("ascii"), expires, int(time.time()), context=self.context)
        return self.routed(envelope).encode()

    def routed(self, envelope: Envelope) -> Envelope:
        """Return *envelope* with its destination host, if that is a remote one."""
        return envelope if self.twin is None else replace(envelope, destinations=(self.twin,), tries=self.tries)


class Caller:
    """The calls of one session."""

    def __init__(self, session: Session) -> None:
        self.requests = PendingRequests(session)
        self.session = session
        session.observe(self.requests)

    # One request

    def call(self, request: Invocation, member: Peer | None = None) -> Operation[Answer]:
        """Send *request* to *member*, or to every service of its command, and return the first response."""
        check_member(member)
        if member is not None and request.twin is not None:
            raise ValueError("cannot call both a member and a remote host: give member or twin, not both")
        deadline = request.deadline()
        pending = yield from self.open_started(request, deadline, member)
        return (yield from self.wait(request, pending, deadline))

    def open_started(self, request: Invocation, deadline: Deadline, member: Peer | None = None) -> Operation[PendingRequest]:
        """Do as :meth:`open`. If no service of the command exists, let sbus-trigger(8) start one, and send the request again.

        The request itself goes only to services, so they get it with the credentials of this connection. Duty: as that of :meth:`open`.
        """
        for attempt in range(MAX_STARTS + 1):
            pending = yield from self.open(request, deadline, member)
            is_unserved = isinstance(pending.error, NoRecipient) and member is None and request.twin is None
            if not is_unserved or attempt == MAX_STARTS:
                break
            try:
                reason = yield from self._start_service(request, deadline)
            finally:
                self.requests.close(pending)
            if reason is None:
                break
            if reason:
                pending.error = NoRecipient(request.command, reason=reason)
                break
        return pending

    def open(self, request: Invocation, deadline: Deadline, member: Peer | None = None) -> Operation[PendingRequest]:
        """Send *request* to *member*, or to every service of its command, and find out the callees.

        Duty: :meth:`wait` for the returned request, or close it in ``requests``.
        """
        sent: list[tuple[PendingRequest, RequestCall, list[Call]]] = []

        def start() -> list[Call]:
            if self.requests.answers:
                sent.append(self.send(request, deadline, member))
            return [call for _, _, calls in sent for call in calls]

        try:
            while not sent:
                yield from self.prepare(deadline)
                yield Begin(start, deadline)
            pending, call, _ = sent[0]
            call.result()
            if call.is_undeliverable:
                pending.undelivered()
            elif member is None:
                yield from self._identify(pending, call, deadline)
            else:
                self.note_watched(sent[0][2])
        except BaseException as error:
            for pending, _, _ in sent:
                if not isinstance(error, RemoteRefusal):
                    withdraw(self.session, pending)
                self.requests.close(pending)
            if isinstance(error, TimedOut):
                raise CallTimeout(request.command, request.timeout or 0.0, reason=error.reason, is_sent=bool(sent)) from error
            raise
        return pending

    def wait(self, request: Invocation, pending: PendingRequest, deadline: Deadline) -> Operation[Answer]:
        """Wait for the response, and return it. Raises the error of the call."""
        try:
            while not pending.is_done:
                yield Settle([pending], deadline)
        except TimedOut as error:
            raise self.late(request, pending) from error
        finally:
            withdraw(self.session, pending)
            self.requests.close(pending)
        if isinstance(pending.error, NoRecipient) and request.twin is not None:
            # The request went to the relay, which returns an error itself if the remote host has no service.
            raise NoRecipient(request.command, twin=request.twin)
        if pending.error is not None:
            raise pending.error
        return Answer.of(pending)

    def _start_service(self, request: Invocation, deadline: Deadline) -> Operation[str | None]:
        """Let the trigger start a service for *request*; return why that failed, no words if it has not, None without a trigger.

        Only a trigger of root or of the own user counts. Otherwise any user could make callers wait.
        """
        command = start_command(request.command)
        if command_problem(command):
            return None
        try:
            found = yield from members(self.session, service_key(command), deadline)
        except RemoteRefusal:
            return None
        except TimedOut as error:
            raise CallTimeout(request.command, request.timeout or 0.0, reason=error.reason, is_sent=False) from error
        for trigger in [peer for peer in found if peer.uid in (0, os.geteuid())][:MAX_TRIGGERS]:
            try:
                yield from self.call(Invocation(command, b"", deadline.remaining()), trigger)
            except NoRecipient:
                continue  # a mere subscriber
            except CallTimeout as error:
                raise CallTimeout(request.command, request.timeout or 0.0, reason=error.reason, is_sent=False) from error
            except RemoteError as error:
                return error.words
            except PeerDisconnected:
                return "sbus-trigger has disconnected while it started a service"
            return ""
        return None

    # For group calls

    def prepare(self, deadline: Deadline) -> Operation[None]:
        """Ensure that responses can arrive: know the own address, set ``sender/on``, and subscribe to the key for responses."""
        while not self.requests.answers:
            step = Begin(self._begin_to_prepare, deadline)
            yield step
            step.result()
            # Not after a reconnection that happened meanwhile: the address has changed then.
            key = step.calls[-1].key
            if self.session.address and key == self.session.address + ANSWERS:
                self.requests.answers = key

    def send(self, request: Invocation, deadline: Deadline, member: Peer | None = None) -> tuple[PendingRequest, RequestCall, list[Call]]:
        """Put *request*, to *member* or to every service, into the session; :meth:`prepare` first. Also returns the calls to the bus.

        The SUB for the disconnection of a member precedes the request, so that the disconnection is not missed.
        """
        watch = None if member is None else self._watch(member)
        pending = self.requests.open(request.command, request.key, member, request.kind)
        try:
            call = RequestCall(f"a call of {request.command!r}", pending.uid.encode("ascii"))
            envelope = request.envelope(pending.uid, self.requests.reply_key(pending), deadline)
            key = request.key if member is None else member.address_bytes + request.key
            receipt = controls.RECEIPT_RECIPIENTS if member is None else controls.RECEIPT_UNDELIVERABLE
            packets = [control_packet(receipt, call.token), publication(key, envelope)]
            if member is None and not self.requests.knows(key):
                packets.insert(0, control_packet(controls.MEMBERS, members_question(key)))
            self.session.send_call(call, *packets)
            self.session.ask_for_batches()  # for the packets of the next call
        except PayloadTooLarge as error:
            self.requests.close(pending)
            raise error.without_advice() from None
        except BaseException:
            self.requests.close(pending)
            raise
        return pending, call, [call] if watch is None else [watch.subscribing, call]

    def note_watched(self, calls: Iterable[Call]) -> None:
        """Count the watches among *calls*, of a request to a member, that the bus refused: the disconnection is hidden then."""
        self.requests.unwatched += sum(isinstance(call.error, RemoteRefusal) for call in calls if not isinstance(call, RequestCall))

    def late(self, request: Invocation, pending: PendingRequest) -> CallTimeout:
        """Return the error of a request without a response in time; its callees may not serve the command any more."""
        callees = tuple((pending.callees or {}).values())
        for peer in callees:
            self.requests.doubt(peer.connection, request.key)
        is_own = any(peer.address_bytes == self.session.address for peer in callees)
        return CallTimeout(request.command, request.timeout or 0.0, callees, reason=_OWN_SERVICE if is_own else "")

    def post(self, packet: bytes) -> None:
        """Put a publication into the session that no call waits for."""
        post(self.session, packet)

    # Private

    def _begin_to_prepare(self) -> list[Call]:
        """Put the next step of preparing into the session."""
        session = self.session
        if not session.address:
            session.batching.request()
            return [session.ask_address()]
        mode = control_packet(controls.SENDER_ON)
        session.remember_mode(controls.SENDER_ON, mode)
        pattern = session.address + ANSWERS
        return [session.send_call(Call("a key for responses", Expects.SILENCE, pattern), mode, subscribe_packet(pattern))]

    def _identify(self, pending: PendingRequest, call: RequestCall, deadline: Deadline) -> Operation[None]:
        """Find out the callees of a request that has been sent."""
        call.result()
        if call.is_undeliverable:
            pending.undelivered()
            return
        key = pending.key
        candidates = yield from self._candidates(key, call, deadline)
        serving: dict[int, Peer] = {}
        departed: dict[int, Peer] = {}
        looked: set[int] = set()
        for _ in range(_ROUNDS if call.recipients is None else 1):
            fresh = [peer for connection, peer in candidates.items() if connection not in looked]
            looked.update(candidates)
            serving |= _by_number(filter(None, (self.requests.service(peer.connection, key) for peer in fresh)))
            unknown = [peer for peer in fresh if peer.connection not in serving]
            # The request was delivered: if no callee is known yet, it is a member that subscribed just now.
            if not unknown and serving:
                break
            candidates = yield from self._look(unknown, key, serving, deadline)
            departed |= _by_number(peer for peer in unknown if peer.connection not in serving and peer.connection not in candidates)
            if serving or looked.issuperset(candidates):
                break
        self.requests.resolve(pending, serving.values(), departed.values())

    def _candidates(self, key: bytes, call: RequestCall, deadline: Deadline) -> Operation[dict[int, Peer]]:
        """Return the connections that may have got a request: those that did, or all members of *key* if the bus did not list them."""
        if call.recipients is not None and call.members is None:
            return {number: unknown_peer(number) for number in call.recipients}
        page, following = ((), 0) if call.members is None else parse_members(call.members)
        found = _by_number(page if following is None else (yield from members(self.session, key, deadline)))
        if call.recipients is None:
            return found
        return {number: found.get(number) or unknown_peer(number) for number in call.recipients}

    def _look(self, unknown: Iterable[Peer], key: bytes, serving: dict[int, Peer], deadline: Deadline) -> Operation[dict[int, Peer]]:
        """Begin to watch peers, add those that serve *key* to *serving*, and return the present members of *key*."""
        asked: list[tuple[Peer, PeerWatch, Call]] = []

        def start() -> list[Call]:
            for peer in unknown:
                watch = self._watch(peer)
                asked.append((peer, watch, ask_members(self.session, peer.address_bytes + key)))
            return [call for _, watch, question in asked for call in (watch.subscribing, question)]

        yield Begin(start, deadline)
        for peer, watch, question in asked:
            if found := parse_members(question.result())[0]:
                watch.peer = serving[peer.connection] = found[0]
                self._note_service(watch, key)
        return _by_number((yield from members(self.session, key, deadline)))

    def _watch(self, peer: Peer) -> PeerWatch:
        """Return the watch of *peer*; if there was none, its SUB is put into the session."""
        return self.requests.watch(peer, lambda: self._watch_end(peer))

    def _note_service(self, watch: PeerWatch, key: bytes) -> None:
        """Note that the peer of *watch* serves *key*; a peer whose disconnection is hidden is asked again for each call."""
        if watch.is_blind:
            self.requests.unwatched += 1
        else:
            watch.serves.add(key)

    def _watch_end(self, peer: Peer) -> Call:
        """Put the SUB for the disconnection of *peer* into the session."""
        pattern = b"%b%d" % (DISCONNECT_HEAD, peer.connection)
        return self.session.send_call(Call(f"SUB {repr(pattern)[1:]}", Expects.SILENCE, pattern), subscribe_packet(pattern))


def check_member(member: object) -> None:
    """Raise TypeError unless *member* is a connection or None."""
    if member is not None:
        check_type(member, Peer, "member", "a Peer, from members() or presence()")


def _by_number(peers: Iterable[Peer]) -> dict[int, Peer]:
    """Return *peers* by connection number."""
    return {peer.connection: peer for peer in peers}
