"""Who a message with a key would reach, all pages of it. No I/O. Spec: sbus-protocol(7) §6, ``!/bus/members``."""

from __future__ import annotations

from sbusd.client.bus_queries import members_question, parse_members
from sbusd.client.deadline import Deadline
from sbusd.client.operation import Begin, Procedure
from sbusd.client.pending_replies import Call, Expects
from sbusd.client.session import Session
from sbusd.protocol import controls
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.packets import control_packet
from sbusd.protocol.peers import Peer


def ask_members(session: Session, key: bytes, after: int | None = None) -> Call:
    """Put the question for a page of members into the session."""
    question = control_packet(controls.MEMBERS, members_question(key, after))
    return session.send_call(Call(f"CMSG {repr(controls.MEMBERS)[1:]}", Expects.ANSWER, controls.MEMBERS), question)


def members(session: Session, key: bytes, deadline: Deadline) -> Procedure[tuple[Peer, ...]]:
    """Return the connections that a message with *key* would reach, in the order of their numbers.

    Raises:
        RemoteRefusal: this client may not publish to *key*, or not know its members.
        ProtocolError: EPROTO if the answer is not what a bus says; EINVAL if *key* has a NUL.
    """
    if b"\0" in key:
        raise ProtocolError(ErrorCode.EINVAL, f"invalid key {key[:24]!r}: it contains a NUL byte")
    found: list[Peer] = []
    after: int | None = None
    while True:
        calls: list[Call] = []

        def start(calls: list[Call] = calls, after: int | None = after) -> list[Call]:
            calls.append(ask_members(session, key, after))
            return calls

        yield Begin(start, deadline)
        page, following = parse_members(calls[0].result())
        found.extend(page)
        if following is None:
            return tuple(found)
        if after is not None and following <= after:
            raise ProtocolError(ErrorCode.EPROTO, "the bus sent an invalid list of members: its pages repeat")
        after = following


def own_address(session: Session, deadline: Deadline) -> Procedure[bytes]:
    """Return the connection's own address; it is asked for once for each connection."""
    while not session.address:
        calls: list[Call] = []

        def start(calls: list[Call] = calls) -> list[Call]:
            calls.extend([] if session.address else [session.ask_address()])
            return calls

        yield Begin(start, deadline)
        for call in calls:
            call.result()
    return session.address
