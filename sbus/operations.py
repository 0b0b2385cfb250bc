"""Everything that a program asks of the bus, as steps, for both faces. No I/O. Spec: sbus-protocol(7) §6.

An operation is a generator that yields steps; a link performs each step, in its own way. After each step the link resumes the operation.
If a wait fails or is cancelled, the link raises that exception inside the operation, so that the operation can undo what it has begun.

*timeout* is in seconds; None means no limit. The errors are documented at the methods of :class:`~sbus.sync.bus.Bus`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from sbus.arguments import check_type, time_limit
from sbus.bus_calls import Call, Expects, members_question, parse_members
from sbus.encoding import Data, control_key, payload_bytes, to_bytes
from sbus.errors import Disconnected, NoBus, RemoteRefusal, TimedOut
from sbus.features import FAIR
from sbus.inbox import Bounds, Inbox
from sbus.protocol import controls
from sbus.protocol.credentials import Peer, parse_name
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import text_of
from sbus.protocol.packets import control_packet
from sbus.protocol.vouching import loss_payload
from sbus.session import Session

if TYPE_CHECKING:
    from sbus.rpc.service import Dispatcher

C = TypeVar("C", bound=Call)
T = TypeVar("T")


_LONGEST_POLL_SECONDS = 3_600.0


class Deadline:
    """The time when *what* must be done: *seconds* from now; None means never. Raises TypeError, ValueError."""

    __slots__ = ("_at", "_seconds", "_what")

    def __init__(self, what: str, seconds: float | None) -> None:
        self._what = what
        self._seconds = limit = time_limit(seconds)
        self._at = None if limit is None else time.monotonic() + limit

    def remaining(self) -> float | None:
        """Return the remaining seconds, 0 or more, or None if there is no limit."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    @property
    def milliseconds(self) -> float | None:
        """The remaining time for poll(2), which takes at most 24 days: after an hour look again."""
        remaining = self.remaining()
        return None if remaining is None else min(remaining, _LONGEST_POLL_SECONDS) * 1_000

    def check(self) -> None:
        """Raise TimedOut if the deadline has passed."""
        if self._at is not None and time.monotonic() >= self._at:
            raise self.expired()

    def sooner(self, other: Deadline) -> Deadline:
        """Return this deadline or *other*, whichever comes first."""
        return other if self._at is None or (other._at is not None and other._at < self._at) else self

    def expired(self) -> TimedOut:
        """Return the error for this deadline."""
        return TimedOut(self._what, self._seconds or 0.0)


def until_check(waits: Iterator[float], deadline: Deadline) -> Deadline:
    """Return the time of the next check of the bus's service, after the next of *waits*, or *deadline* if that comes first."""
    seconds = next(waits, None)
    return deadline if seconds is None else deadline.sooner(Deadline("responding", seconds))


class Begin(Generic[C]):
    """Wait until the connection can send, call *start*, and wait until each of the ``calls`` that it returned is done."""

    __slots__ = ("_start", "calls", "deadline")

    def __init__(self, start: Callable[[], Sequence[C]], deadline: Deadline) -> None:
        self.calls: Sequence[C] = ()
        """Empty until *start* has been called."""
        self.deadline = deadline
        self._start = start

    def begin(self) -> Sequence[C]:
        """Put the calls into the session, and return them."""
        self.calls = self._start()
        return self.calls

    def result(self) -> bytes:
        """Return the response of the last call. Raises the error of the first call that failed."""
        answer = b""
        for call in self.calls:
            answer = call.result()
        return answer


@dataclass(frozen=True, slots=True)
class Send:
    """Send ``packet`` after all packets before it, for as long as a publication may take."""

    packet: bytes


class Awaited(Protocol):
    """A request, or a part of its response, that a link waits for."""

    on_done: Callable[[], None] | None

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to wait for."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait until one of ``requests`` is done."""

    requests: Sequence[Awaited]
    deadline: Deadline


Step = Begin[Any] | Send | Settle

Operation = Generator[Step, None, T]
"""Steps that end in a result."""


def publish(session: Session, packet: bytes, key: str | bytes, timeout: float | None) -> Operation[int | None]:
    """Publish *packet*, which has *key*, and return the number of recipients in its receipt; None if the bus does not disclose it."""
    step = Begin(lambda: [session.publish(packet)], Deadline(f"the receipt for {key!r}", timeout))
    yield step
    step.result()
    return step.calls[0].recipients


def check_pacing(session: Session, timeout: float | None) -> Operation[None]:
    """Ask the bus whether it knows pacing. Raises Unsupported if it does not."""
    step = Begin(lambda: [session.ask_pacing()], Deadline("enabling pacing", timeout))
    yield step
    step.result()


def pace_all(session: Session, timeout: float | None) -> Operation[None]:
    """Make every message of this connection wait for slow recipients. Raises Unsupported if the bus does not know pacing."""
    yield from check_pacing(session, timeout)
    session.pacing.always = True
    session.pacing.prepare(b"")
    yield Begin(tuple, Deadline("flushing", timeout))


def subscribe(session: Session, inbox: Inbox, timeout: float | None) -> Operation[None]:
    """Subscribe to the patterns of *inbox*, unless that has been done; on an error, to none of them."""
    if inbox.is_begun:
        return
    step = Begin(lambda: session.subscribe(inbox), Deadline("subscribing", timeout))
    try:
        yield step
        step.result()
    except BaseException:
        session.roll_back(inbox, step.calls)
        raise
    inbox.is_begun = True


def ping(session: Session, timeout: float | None) -> Operation[float]:
    """Return the seconds of a round trip through the bus."""
    begun = 0.0

    def start() -> list[Call]:
        nonlocal begun
        begun = time.perf_counter()
        return [session.ping()]

    step = Begin(start, Deadline("the response to a ping", timeout))
    yield step
    seconds = time.perf_counter() - begun
    step.result()
    session.refusals.raise_oldest()
    return seconds


def admission(session: Session, address: str, timeout: float | None) -> Operation[None]:
    """Wait until the bus has accepted the new connection: connect(2) succeeds before the bus decides about that.

    Raises:
        NoBus: the user has too many connections, for example, or the bus has ended.
        TimedOut: the bus does not respond.
    """
    step = Begin(lambda: [session.ping()], Deadline(f"the response of the bus at {address}", timeout))
    try:
        yield step
        step.result()
    except RemoteRefusal as refusal:
        if refusal.code not in {ErrorCode.EACCES, ErrorCode.EDQUOT}:
            session.keep_refusal(refusal)  # that of the name, from an older bus
            return
        raise NoBus(address, refusal.said) from refusal
    except Disconnected as error:
        raise NoBus(address, error.refusal.said if error.refusal else error.fault or "the bus closed the connection") from error


def control(session: Session, key: str | bytes, payload: Data | None, timeout: float | None) -> Operation[bytes]:
    """Send a control message, and return the payload of its response."""
    name, data = control_key(key), None if payload is None else payload_bytes(payload)
    step = Begin(lambda: [session.control(name, data)], Deadline(f"the response to {key!r}", timeout))
    yield step
    return step.result()


def set_name(session: Session, name: str) -> None:
    """Put the name of the connection into the session, for this connection and the next ones; empty is none.

    Raises:
        TypeError: *name* is not a str.
        ProtocolError: EINVAL, it is longer than 64 bytes, or not printable.
    """
    check_type(name, str, "name", "str")
    data = payload_bytes(name, "name")
    parse_name(data)
    if data:
        packet = control_packet(controls.NAME, data)
        session.send_quietly(packet)
        session.remember_mode(controls.NAME, packet)


def tell(session: Session, key: str | bytes, payload: Data | None) -> Operation[None]:
    """Send a control message that has no response; a mode is set again on each new connection."""
    name = control_key(key)
    packet = control_packet(name, None if payload is None else payload_bytes(payload))
    yield Send(packet)
    session.remember_mode(name, packet)


def report_lost(patterns: Iterable[str | bytes], count: int) -> Operation[None]:
    """Send the subscribers of *patterns* the notice that *count* messages are lost, after all packets before it."""
    check_type(count, int, "count", "int")
    if isinstance(patterns, str | bytes):
        raise TypeError("patterns must be a list of patterns, not one")
    yield Send(control_packet(controls.LOST_FOR, loss_payload(count, [to_bytes(pattern, "pattern") for pattern in patterns])))


def address(session: Session, deadline: Deadline) -> Operation[str]:
    """Return the connection's own address as text."""
    return text_of((yield from own_address(session, deadline)))


def own_address(session: Session, deadline: Deadline) -> Operation[bytes]:
    """Return the connection's own address. The bus is asked once for each connection."""
    while not session.address:
        step = Begin(lambda: [] if session.address else [session.ask_address()], deadline)
        yield step
        step.result()
    return session.address


def ask_members(session: Session, key: bytes, after: int | None = None) -> Call:
    """Put the question for one page of members into the session."""
    question = control_packet(controls.MEMBERS, members_question(key, after))
    return session.send_call(Call(f"CMSG {repr(controls.MEMBERS)[1:]}", Expects.ANSWER, controls.MEMBERS), question)


def members(session: Session, key: bytes, deadline: Deadline) -> Operation[tuple[Peer, ...]]:
    """Return the connections that a message with *key* would reach, by ascending connection number, from all pages of the response.

    Raises:
        RemoteRefusal: this client may not publish to *key*, or may not see its members.
        ProtocolError: EPROTO if the response is malformed; EINVAL if *key* has a NUL.
    """
    if b"\0" in key:
        raise ProtocolError(ErrorCode.EINVAL, f"invalid key {key[:24]!r}: it contains a NUL byte")
    found: list[Peer] = []
    after: int | None = None
    while True:
        page, following = yield from _members_page(session, key, after, deadline)
        found.extend(page)
        if following is None:
            return tuple(found)
        if after is not None and following <= after:
            raise ProtocolError(ErrorCode.EPROTO, "the bus sent an invalid list of members: its pages repeat")
        after = following


def tap(session: Session, pattern: bytes, timeout: float | None) -> Operation[Inbox]:
    """Begin a tap of the traffic whose keys match *pattern*, and return its inbox. Duty: :func:`end_tap` it."""
    inbox = session.new_inbox([pattern])
    step = Begin(lambda: [_begin_tap(session, inbox)], Deadline("the tap", timeout))
    try:
        yield step
        step.result()
    except BaseException:
        end_tap(session, inbox)
        raise
    inbox.is_begun = True
    return inbox


def end_tap(session: Session, inbox: Inbox) -> None:
    """End the tap of *inbox*. Harmless when already ended."""
    if session.tap_inbox is not inbox:
        return
    session.tap_inbox = None
    inbox.patterns.clear()
    inbox.retire()
    packet = control_packet(controls.TAP_OFF)
    session.send_quietly(packet)
    session.remember_mode(controls.TAP_OFF, packet)


def begin_serving(session: Session, dispatcher: Dispatcher, deadline: Deadline, bounds: Bounds | None = None) -> Operation[Inbox]:
    """Subscribe to the services of *dispatcher*, and return their inbox, with *bounds*. Duty: ``session.unsubscribe_all`` it.

    ``sender/on`` is set before the first pattern is stored, so every request arrives with its sender, and ``order/fair``, unless the
    program has set an order: the bus lets the users who call take turns. Spec: sbus-rpc(7) §7.

    Raises:
        RemoteRefusal: the bus does not permit this client to serve one of the commands; it serves none then.
        ValueError: there is nothing to serve.
    """
    while True:
        address = yield from own_address(session, deadline)
        inbox = session.new_inbox(dispatcher.patterns(address), bounds)
        step = Begin(partial(_begin_service, session, inbox, address), deadline)
        try:
            yield step
            step.result()
        except BaseException:
            session.roll_back(inbox, step.calls)
            raise
        if step.calls:
            inbox.is_begun = True
            return inbox


def _members_page(session: Session, key: bytes, after: int | None, deadline: Deadline) -> Operation[tuple[tuple[Peer, ...], int | None]]:
    """Return one page of members, and the connection number to continue after, None on the last page."""
    step = Begin(lambda: [ask_members(session, key, after)], deadline)
    yield step
    return parse_members(step.result())


def _begin_tap(session: Session, inbox: Inbox) -> Call:
    """Put the request for a tap into *session*, and return its call; records go to *inbox*, whose only pattern is that of the tap.

    Raises:
        ValueError: the connection already has a tap.
    """
    if session.tap_inbox is not None:
        raise ValueError("this connection already has a tap: close it, or use a second bus object")
    session.batching.request()
    packet = control_packet(controls.TAP_ON, inbox.patterns[0])
    call = session.send_call(Call(f"CMSG {repr(controls.TAP_ON)[1:]}", Expects.SILENCE), packet)
    session.tap_inbox = inbox
    session.remember_mode(controls.TAP_ON, packet)
    return call


def _begin_service(session: Session, inbox: Inbox, address: bytes) -> list[Call]:
    """Put ``sender/on`` and the SUBs of *inbox* into the session, unless *address* has changed with a reconnection."""
    if session.address != address:
        return []
    if (turns := session.turns.begin()) is not None:
        session.send_call(turns, FAIR)
    mode = control_packet(controls.SENDER_ON)
    session.remember_mode(controls.SENDER_ON, mode)
    senders = session.send_call(Call("CMSG 'sender/on'", Expects.SILENCE), mode)
    return [senders, *session.subscribe(inbox)]
