"""Calls, step by step, for both faces: what to send, what to wait for, what to make of it. No I/O. Spec: sbus-rpc(7) §3 to §6.

A step that waits is *yielded* to the face, which waits in its own way and comes back, with an exception if the wait failed or was
cancelled; so each order of events is written down once. The steps of one call to whoever serves ``echo``:

::

    CMSG !/bus/members\\0rpc/echo           who is there, a moment before
    CMSG receipt/undeliverable\\0<token>    say if nobody is
    MSG rpc/echo\\0<request>                one round trip up to here, and no more for a service that is known
    SUB !/event/disconnect/7               of each who is new: hear of its end, and only then ask
    CMSG !/bus/members\\0!/conn/7/rpc/echo  whether it is there, and serves: one who only listens does not
    CMSG !/bus/members\\0rpc/echo           who is neither serving nor listening any more has gone
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sbusd.client.bus_queries import RequestCall, members_question, parse_members
from sbusd.client.deadline import Deadline
from sbusd.client.encoding import publication
from sbusd.client.errors import AnswerLost, CallTimeout, RemoteRefusal, SbusError, TimedOut
from sbusd.client.members import ask_members, members
from sbusd.client.operation import Begin, Procedure, Settle
from sbusd.client.pending_replies import Call, Expects
from sbusd.client.rpc.pending_requests import ANSWERS, DISCONNECT_HEAD, CallTable, Outstanding, Watch
from sbusd.client.session import Session
from sbusd.protocol import controls
from sbusd.protocol.envelope import NUMBER_LIMITS, Envelope, command_problem, relay_key, service_key
from sbusd.protocol.packets import control_packet, subscribe_packet
from sbusd.protocol.peers import Peer

CALL_SECONDS = 30.0
"""How long a call waits by default: the bus's own default for a client that blocks. A service that is gone is known at once."""

CALL_TRIES = 4
"""How often a host that cannot be reached is tried again by default: with the relay's own interval for twenty seconds, which is within
``CALL_SECONDS``. The founding document's example has as many."""

AT_ONCE = 64
"""Requests under way at once in a call to many, so that a large group is neither flooded nor held in memory as a whole."""

_ROUNDS = 3
"""Rounds of looking for who took a request, if those change while they are looked for."""


class Answer(bytes):
    """What a service answered. ``callee`` is who, by the bus's word; ``source`` the host's twin, 0 for this one."""

    callee: Peer | None = None
    source: int = 0

    @classmethod
    def of(cls, outstanding: Outstanding) -> Answer:
        """Return the answer of a request that is done well."""
        made = cls(outstanding.answer.data)
        made.callee = outstanding.answerer
        made.source = outstanding.answer.source
        return made


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of calling one member of a group: ``answer``, or else ``error``."""

    member: Peer
    answer: Answer | None
    error: SbusError | None

    def result(self) -> Answer:
        """Return the answer, or raise the error."""
        if self.error is not None:
            raise self.error
        if self.answer is None:
            raise ValueError("invalid outcome: neither a response nor an error")
        return self.answer


@dataclass(frozen=True, slots=True)
class Invocation:
    """What is called, with what, and for how long the caller waits."""

    command: str
    data: bytes
    timeout: float | None
    twin: int | None = None
    tries: int = CALL_TRIES
    """How often *twin* is tried again if it cannot be reached."""

    def __post_init__(self) -> None:
        if problem := command_problem(self.command):
            raise ValueError(f"the command {self.command!r} {problem}")
        if self.twin is not None and not 0 <= self.twin <= NUMBER_LIMITS["src"]:
            raise ValueError(f"invalid twin {self.twin}: must be 0 to {NUMBER_LIMITS['src']}")
        if not 0 <= self.tries <= NUMBER_LIMITS["try"]:
            raise ValueError(f"invalid tries {self.tries}: must be 0 to {NUMBER_LIMITS['try']}")

    @property
    def key(self) -> bytes:
        """Where those listen who can run it."""
        return service_key(self.command) if self.twin is None else relay_key(self.twin, self.command)

    def deadline(self) -> Deadline:
        """Return the end of the wait, if it begins now."""
        return Deadline(f"the response to {self.command!r}", self.timeout)

    def envelope(self, uid: str, reply_to: bytes, deadline: Deadline) -> bytes:
        """Return the request as it is sent now."""
        remaining = deadline.remaining()
        expires = 0 if remaining is None else min(max(1, math.ceil(remaining)), NUMBER_LIMITS["exp"])
        envelope = Envelope(self.command, uid, self.data, reply_to.decode("ascii"), expires, int(time.time()))
        return self.routed(envelope).encode()

    def routed(self, envelope: Envelope) -> Envelope:
        """Return *envelope* with the hosts that it goes between."""
        return envelope if self.twin is None else replace(envelope, destinations=(self.twin,), tries=self.tries)


class Caller:
    """The calls of one session."""

    def __init__(self, session: Session, read_envelope: Callable[[bytes], Envelope]) -> None:
        self.table = CallTable(session, read_envelope)
        self.session = session
        session.listen(self.table)

    # One request

    def open(self, request: Invocation, deadline: Deadline, member: Peer | None = None) -> Procedure[Outstanding]:
        """Send *request* to *member*, or to whoever serves its command, and find out who that is.

        Duty: :meth:`wait` for what is returned, or close it in the table.
        """
        sent: list[tuple[Outstanding, RequestCall, list[Call]]] = []

        def start() -> list[Call]:
            if self.table.answers:
                sent.append(self.send(request, deadline, member))
            return [call for _, _, calls in sent for call in calls]

        try:
            while not sent:
                yield from self.prepare(deadline)
                yield Begin(start, deadline)
            outstanding, call, _ = sent[0]
            call.result()
            if call.is_undeliverable:
                outstanding.undelivered()
            elif member is None:
                yield from self._identify(outstanding, call, deadline)
            else:
                self.note_watched(sent[0][2])
        except BaseException as error:
            for outstanding, _, _ in sent:
                self.table.close(outstanding)
            if isinstance(error, TimedOut):
                raise CallTimeout(request.command, request.timeout or 0.0) from error
            raise
        return outstanding

    def wait(self, request: Invocation, outstanding: Outstanding, deadline: Deadline) -> Procedure[Answer]:
        """Wait for the answer. Raises what became of it otherwise."""
        try:
            while not outstanding.is_done:
                yield Settle([outstanding], deadline)
        except TimedOut as error:
            raise self.late(request, outstanding) from error
        finally:
            self.table.close(outstanding)
        if outstanding.error is not None:
            raise outstanding.error
        return Answer.of(outstanding)

    # For a call to many

    def prepare(self, deadline: Deadline) -> Procedure[None]:
        """See to it that answers can come: that the own address is known, senders are told, and the place of answers is subscribed to."""
        while not self.table.answers:
            calls: list[Call] = []

            def start(calls: list[Call] = calls) -> list[Call]:
                calls.extend(self._begin_to_prepare())
                return calls

            yield Begin(start, deadline)
            for call in calls:
                call.result()
            # Nothing of this is true any more if the connection was lost and made anew just now.
            if calls and self.session.address and calls[-1].key == self.session.address + ANSWERS:
                self.table.answers = calls[-1].key

    def send(self, request: Invocation, deadline: Deadline, member: Peer | None = None) -> tuple[Outstanding, RequestCall, list[Call]]:
        """Put *request* into the session, to *member* or to whoever serves it; only once prepared. Returns all the calls that it makes.

        Before a request to a member goes the SUB for its end, so that it is heard from then on.
        """
        watch = None if member is None else self._watch(member)
        outstanding = self.table.open(request.command, request.key, member)
        try:
            call = RequestCall(f"a call of {request.command!r}", outstanding.uid.encode("ascii"))
            envelope = request.envelope(outstanding.uid, self.table.reply_key(outstanding), deadline)
            key = request.key if member is None else member.address + request.key
            packets = [control_packet(controls.RECEIPT_UNDELIVERABLE, call.token), publication(key, envelope)]
            if member is None:
                packets.insert(0, control_packet(controls.MEMBERS, members_question(key)))
            self.session.send_call(call, *packets)
            self.session.ask_for_batches()  # what the next call sends may leave together
        except BaseException:
            self.table.close(outstanding)
            raise
        return outstanding, call, [call] if watch is None else [watch.subscribing, call]

    def note_watched(self, calls: Iterable[Call]) -> None:
        """Count those among *calls*, of one that was sent to a member, by which its end should have been heard and will not."""
        self.table.unwatched += sum(isinstance(call.error, RemoteRefusal) for call in calls if not isinstance(call, RequestCall))

    def late(self, request: Invocation, outstanding: Outstanding) -> CallTimeout:
        """Return the error of a request that was not answered in time; those called may not serve it any more."""
        callees = tuple((outstanding.callees or {}).values())
        for peer in callees:
            self.table.doubt(peer.connection, request.key)
        return CallTimeout(request.command, request.timeout or 0.0, callees)

    # Private

    def _begin_to_prepare(self) -> list[Call]:
        """Put the next step of preparing into the session."""
        session = self.session
        if not session.address:
            session.want_batches()
            return [session.ask_address()]
        mode = control_packet(controls.SENDER_ON)
        session.remember_mode(controls.SENDER_ON, mode)
        pattern = session.address + ANSWERS
        return [session.send_call(Call("a key for responses", Expects.SILENCE, pattern), mode, subscribe_packet(pattern))]

    def _identify(self, outstanding: Outstanding, call: RequestCall, deadline: Deadline) -> Procedure[None]:
        """Find out who was called by a request that has been sent."""
        call.result()
        if call.is_undeliverable:
            outstanding.undelivered()
            return
        if call.members is None:
            raise AnswerLost(call.request)
        page, following = parse_members(call.members)
        key = outstanding.key
        candidates = _by_number(page if following is None else (yield from members(self.session, key, deadline)))
        serving: dict[int, Peer] = {}
        departed: dict[int, Peer] = {}
        looked: set[int] = set()
        for _ in range(_ROUNDS):
            fresh = [peer for connection, peer in candidates.items() if connection not in looked]
            looked.update(candidates)
            serving |= _by_number(peer for peer in fresh if self.table.serves(peer.connection, key))
            unknown = [peer for peer in fresh if peer.connection not in serving]
            # Somebody took the request: if nobody is known, it was one who came just now.
            if not unknown and serving:
                break
            candidates = yield from self._look(unknown, key, serving, deadline)
            departed |= _by_number(peer for peer in unknown if peer.connection not in serving and peer.connection not in candidates)
            if serving or looked.issuperset(candidates):
                break
        self.table.resolve(outstanding, serving.values(), departed.values())

    def _look(self, unknown: Iterable[Peer], key: bytes, serving: dict[int, Peer], deadline: Deadline) -> Procedure[dict[int, Peer]]:
        """Begin to watch peers, add those to *serving* who serve *key*, and return those whom a message with *key* reaches now."""
        asked: list[tuple[Peer, Watch, Call]] = []

        def start() -> list[Call]:
            for peer in unknown:
                watch = self._watch(peer)
                asked.append((peer, watch, ask_members(self.session, peer.address + key)))
            return [call for _, watch, question in asked for call in (watch.subscribing, question)]

        yield Begin(start, deadline)
        for peer, watch, question in asked:
            if parse_members(question.result())[0]:
                serving[peer.connection] = peer
                self._note_service(watch, key)
        return _by_number((yield from members(self.session, key, deadline)))

    def _watch(self, peer: Peer) -> Watch:
        """Return the watch of *peer*; if there was none, its SUB is put into the session."""
        return self.table.watch(peer.connection, lambda: self._watch_end(peer))

    def _note_service(self, watch: Watch, key: bytes) -> None:
        """Take note that the peer of *watch* serves *key*: whose end is not heard is asked each time."""
        if watch.is_blind:
            self.table.unwatched += 1
        else:
            watch.serves.add(key)

    def _watch_end(self, peer: Peer) -> Call:
        """Put the SUB for the end of *peer* into the session."""
        pattern = b"%b%d" % (DISCONNECT_HEAD, peer.connection)
        return self.session.send_call(Call(f"SUB {repr(pattern)[1:]}", Expects.SILENCE, pattern), subscribe_packet(pattern))


def _by_number(peers: Iterable[Peer]) -> dict[int, Peer]:
    """Return *peers* by their connections."""
    return {peer.connection: peer for peer in peers}
