"""Everything that a program asks of the bus, step by step, for both faces. No I/O. Spec: sbus-protocol(7) §6.

*timeout* is in seconds; None means no limit. Its errors are documented at the methods of :class:`~sbusd.client.sync.bus.Bus`.
"""

from __future__ import annotations

import time

from sbusd.client.bus_queries import members_question, parse_members
from sbusd.client.encoding import control_key, to_bytes
from sbusd.client.inbox import Inbox
from sbusd.client.pending_replies import Call, Expects
from sbusd.client.session import Session
from sbusd.client.steps import Begin, Deadline, Operation, Send
from sbusd.client.tap import begin_tap, end_tap
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.packets import control_packet
from sbusd.protocol.peers import Peer


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
    session.raise_refusal()
    return seconds


def control(session: Session, key: str | bytes, payload: str | bytes | None, timeout: float | None) -> Operation[bytes]:
    """Send a control message, and return the payload of its response."""
    name, data = control_key(key), None if payload is None else to_bytes(payload)
    step = Begin(lambda: [session.control(name, data)], Deadline(f"the response to {key!r}", timeout))
    yield step
    return step.result()


def tell(session: Session, key: str | bytes, payload: str | bytes | None) -> Operation[None]:
    """Send a control message that has no response; a mode is set again on each new connection."""
    name = control_key(key)
    packet = control_packet(name, None if payload is None else to_bytes(payload))
    yield Send(packet)
    session.remember_mode(name, packet)


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


def _members_page(session: Session, key: bytes, after: int | None, deadline: Deadline) -> Operation[tuple[tuple[Peer, ...], int | None]]:
    """Return one page of members, and the connection number to continue after, None on the last page."""
    step = Begin(lambda: [ask_members(session, key, after)], deadline)
    yield step
    return parse_members(step.result())


def tap(session: Session, pattern: bytes, timeout: float | None) -> Operation[Inbox]:
    """Begin a tap of the traffic whose keys match *pattern*, and return its inbox. Duty: :func:`~sbusd.client.tap.end_tap` it."""
    inbox = session.new_inbox([pattern])
    step = Begin(lambda: [begin_tap(session, inbox)], Deadline("the tap", timeout))
    try:
        yield step
        step.result()
    except BaseException:
        end_tap(session, inbox)
        raise
    inbox.is_begun = True
    return inbox
