"""Operations, performed by hand: no link, and no socket; and their deadlines."""

from __future__ import annotations

from typing import Any

import pytest

from sbus import operations
from sbus.errors import RemoteRefusal, TimedOut
from sbus.operations import Begin, Deadline, Operation, Send
from sbus.protocol.errors import ProtocolError
from sbus.session import Session

PONG = b"CMSG !/bus/ping\0sbus/%d"


def test_no_end() -> None:
    deadline = Deadline("it", None)
    assert deadline.remaining() is None
    deadline.check()


def test_an_end_ahead() -> None:
    deadline = Deadline("it", 1000.0)
    remaining = deadline.remaining()
    assert remaining is not None
    assert 0 < remaining <= 1000.0
    deadline.check()


def test_an_end_that_has_come() -> None:
    deadline = Deadline("it", 0.0)
    assert deadline.remaining() == 0.0
    with pytest.raises(TimedOut, match="it took longer than 0 s") as caught:
        deadline.check()
    assert isinstance(caught.value, TimeoutError)


def begin(session: Session, operation: Operation[Any]) -> Begin[Any]:
    """Begin the next step of *operation*, which must be calls."""
    step = next(operation)
    assert isinstance(step, Begin)
    step.begin()
    return step


def sent(session: Session) -> list[bytes]:
    packets = [packet for packet in session.outgoing if not packet.startswith(b"CMSG !/bus/ping")]
    session.outgoing.clear()
    return packets


def result(operation: Operation[Any]) -> Any:
    with pytest.raises(StopIteration) as end:
        next(operation)
    return end.value.value


def test_a_call_begins_when_the_link_begins_it() -> None:
    session = Session()
    operation = operations.control(session, "!/bus/stats", None, None)
    step = next(operation)
    assert isinstance(step, Begin)
    assert not session.outgoing
    step.begin()
    assert sent(session) == [b"CMSG !/bus/stats"]
    session.receive(b"CMSG !/bus/stats\0{}")
    assert result(operation) == b"{}"


def test_the_error_of_a_call_is_raised() -> None:
    session = Session()
    operation = operations.control(session, "!/bus/stats", None, None)
    begin(session, operation)
    session.receive(b"CMSG !/bus/error\0EPERM no")
    with pytest.raises(RemoteRefusal, match="EPERM no"):
        next(operation)


def test_a_subscription_that_times_out_is_undone_when_its_outcome_is_known() -> None:
    session = Session()
    inbox = session.new_inbox([b"a"])
    operation = operations.subscribe(session, inbox, 1.0)
    begin(session, operation)
    with pytest.raises(TimedOut):
        operation.throw(TimedOut("subscribing", 1.0))
    assert sent(session) == [b"SUB a"]
    session.receive(PONG % 1)
    assert sent(session) == [b"UNSUB a"]
    assert not inbox.is_begun


def test_a_report_of_a_loss_is_sent_in_its_place() -> None:
    session = Session()
    operation = operations.report_lost(["a/*", b""], 3)
    assert next(operation) == Send(b"CMSG lost/for\x003\0a/*\0")
    result(operation)
    assert not session.outgoing


@pytest.mark.parametrize(("patterns", "count"), [([], 1), ([b"a\0b"], 1), ([b"a"], -1), ([b"a"], 10**15), ([b"a"] * 65, 1)])
def test_an_invalid_report_of_a_loss_is_not_sent(patterns: list[bytes], count: int) -> None:
    with pytest.raises(ProtocolError):
        next(operations.report_lost(patterns, count))


def test_a_subscription_begins_once() -> None:
    session = Session()
    inbox = session.new_inbox([b"a"])
    operation = operations.subscribe(session, inbox, None)
    begin(session, operation)
    session.receive(PONG % 1)
    result(operation)
    assert inbox.is_begun
    result(operations.subscribe(session, inbox, None))


def test_a_tap_that_fails_before_it_begins_sends_nothing() -> None:
    session = Session()
    operation = operations.tap(session, b"", None)
    next(operation)
    with pytest.raises(TimedOut):
        operation.throw(TimedOut("the tap", 1.0))
    assert not session.outgoing


def test_the_address_is_asked_for_once() -> None:
    session = Session()
    operation = operations.own_address(session, Deadline("it", None))
    begin(session, operation)
    session.receive(b"CMSG !/conn/whoami\0!/conn/7/")
    assert result(operation) == b"!/conn/7/"
    assert result(operations.own_address(session, Deadline("it", None))) == b"!/conn/7/"


def test_a_message_of_tell_is_sent_and_then_recorded() -> None:
    session = Session()
    operation = operations.tell(session, "echo/off", None)
    assert next(operation) == Send(b"CMSG echo/off")
    assert not session.settings.packets
    result(operation)
    assert session.settings.packets == (b"CMSG echo/off",)


def test_members_follow_pages_but_not_in_a_circle() -> None:
    session = Session()
    operation = operations.members(session, b"a", Deadline("it", None))
    for _ in range(2):
        begin(session, operation)
        session.receive(b'CMSG !/bus/members\0{"members":[],"next":5}')
        session.receive(PONG % session._pending.last_token)
    assert sent(session) == [b"CMSG !/bus/members\0a", b"CMSG !/bus/members\0a\x005"]
    with pytest.raises(ProtocolError, match="its pages repeat"):
        next(operation)


def test_members_of_an_invalid_key_are_not_asked_for() -> None:
    with pytest.raises(ProtocolError, match="NUL"):
        next(operations.members(Session(), b"a\0b", Deadline("it", None)))
