"""The serving side: what is run, what is refused, and what is answered."""

from __future__ import annotations

import grp
import logging
import os
import pwd
from dataclasses import replace
from typing import Any, cast

import pytest

from sbus import Allow, Peer, Request, ServiceError, Twins
from sbus.errors import RemoteRefusal
from sbus.items import Message
from sbus.protocol.envelope import Envelope, parse_envelope
from sbus.protocol.errors import ErrorCode
from sbus.protocol.packets import MAX_PACKET_BYTES, Publish, parse_packet
from sbus.rpc.request_queue import WAITING_PER_USER
from sbus.rpc.service import Dispatcher
from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange

NOW = 1_000_000.0


def caller(uid: int = 1000, connection: int = 7, gid: int = 100) -> Peer:
    return Peer(connection, uid, gid, 42, b"!/cred/%d/%d/42" % (gid, uid))


def message(envelope: Envelope, sender: Peer | None, key: bytes = b"rpc/echo") -> Message:
    return Message(key, envelope.encode(), sender)


def asked(uid: str = "u", data: bytes = b"x", connection: int = 7, **more: object) -> Envelope:
    envelope = Envelope("echo", uid, data, reply_to=f"!/conn/{connection}/ret/{uid}", sent_at=int(NOW), expires_seconds=30)
    return replace(envelope, **cast(dict[str, Any], more))


@pytest.fixture
def dispatcher() -> Dispatcher:
    made = Dispatcher()
    made.add("echo", lambda request: request.data, None)
    return made


def reply(packet: bytes) -> tuple[bytes, Envelope]:
    parsed = parse_packet(packet)
    assert isinstance(parsed, Publish)
    return parsed.key, parse_envelope(parsed.payload)


def run(dispatcher: Dispatcher) -> tuple[bytes, Envelope]:
    task, packets = dispatcher.next(NOW)
    assert task is not None
    assert not packets
    result = task.handler(task.request)
    assert isinstance(result, bytes | str | None)
    return reply(dispatcher.answered(task, result))


@pytest.mark.parametrize("key", [b"rpc/echo", b"!/conn/3/rpc/echo"])
def test_a_request_is_run_and_answered(dispatcher: Dispatcher, key: bytes) -> None:
    assert dispatcher.receive(message(asked(), caller(), key), NOW) == b""
    to, envelope = run(dispatcher)
    assert to == b"!/conn/7/ret/u"
    assert (envelope.uid, envelope.command, envelope.data, envelope.error) == ("u", "echo", b"x", "")
    assert dict(dispatcher.counts) == {"requests": 1, "answered": 1}


def test_the_handler_is_given_verified_credentials() -> None:
    seen: list[Request] = []
    dispatcher = Dispatcher()
    dispatcher.add("echo", seen.append, None)
    dispatcher.receive(message(asked(source=12), caller()), NOW)
    run(dispatcher)
    (request,) = seen
    # What a user of this host says of another is nothing.
    assert (request.caller, request.uid, request.command, request.data, request.source) == (caller(), "u", "echo", b"x", 0)
    assert request.expires_at == NOW + 31


def test_the_handler_is_given_the_trace_context() -> None:
    context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    seen: list[Request] = []
    dispatcher = Dispatcher()
    dispatcher.add("echo", seen.append, None)
    for number, each in enumerate(("", context, "not a context")):
        dispatcher.receive(message(asked(f"{number}", context=each), caller()), NOW)
        run(dispatcher)
    assert [request.context for request in seen] == ["", context, ""]


def test_a_reply_between_hosts_swaps_source_and_destination(dispatcher: Dispatcher) -> None:
    dispatcher.receive(message(asked(source=1001, destinations=(1002,)), caller()), NOW)
    _, envelope = run(dispatcher)
    assert (envelope.source, envelope.destinations) == (1002, (1001,))


def test_one_that_wants_no_answer_gets_none(dispatcher: Dispatcher) -> None:
    dispatcher.receive(message(asked(reply_to=""), caller()), NOW)
    task, _ = dispatcher.next(NOW)
    assert task is not None
    assert dispatcher.answered(task, b"x") == b""
    assert task.error("no") == b""


@pytest.mark.parametrize(
    "ret",
    ["!/conn/8/ret/u", "!/conn/77/u", "!/conn/7", "ordinary/key", "!/cred//0//x", "!/conn/07/x", "rpc/echo"],
)
def test_an_answer_goes_nowhere_but_to_the_caller(dispatcher: Dispatcher, ret: str, caplog: pytest.LogCaptureFixture) -> None:
    """Else any user could have words put into another's mailbox in the service's name."""
    assert dispatcher.receive(message(asked(reply_to=ret), caller()), NOW) == b""
    assert dispatcher.next(NOW) == (None, [])
    assert dispatcher.counts["foreign_ret"] == 1
    assert "which is not at the address of the caller" in caplog.text


def test_a_request_without_its_sender_is_not_run(dispatcher: Dispatcher) -> None:
    assert dispatcher.receive(message(asked(), None), NOW) == b""
    assert dispatcher.next(NOW) == (None, [])
    assert dispatcher.counts["without_sender"] == 1


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (Message(b"rpc/echo", b"{", caller()), "malformed"),
        (Message(b"rpc/echo", Envelope("other", "u").encode(), caller()), "malformed"),
        (Message(b"rpc/other", Envelope("other", "u").encode(), caller()), "unknown"),
        (Message(b"elsewhere", Envelope("echo", "u").encode(), caller()), "unknown"),
    ],
)
def test_an_invalid_request(dispatcher: Dispatcher, given: Message, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    assert dispatcher.receive(given, NOW) == b""
    assert dispatcher.next(NOW) == (None, [])
    assert dict(dispatcher.counts) == {"requests": 1, reason: 1}
    assert "discarded a request" in caplog.text


def test_no_user_can_fill_the_log(dispatcher: Dispatcher, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(1_000):
        dispatcher.receive(Message(b"rpc/echo", b"{", caller(uid=2)), NOW)
    assert len(caplog.records) == 10
    dispatcher.receive(Message(b"rpc/echo", b"{", caller(uid=3)), NOW)
    assert len(caplog.records) == 11


def test_a_uid_is_run_once(dispatcher: Dispatcher) -> None:
    dispatcher.receive(message(asked(), caller()), NOW)
    assert dispatcher.receive(message(asked(data=b"again"), caller()), NOW) == b""
    assert dispatcher.counts["duplicate"] == 1
    assert run(dispatcher)[1].data == b"x"
    assert dispatcher.next(NOW) == (None, [])


def cancel(dispatcher: Dispatcher, uid: str = "u", connection: int = 7, command: str = "echo", user: int = 1000) -> None:
    envelope = Envelope(command, uid, expires_seconds=1, sent_at=1, cancel=1)
    key = b"!/conn/3/rpc/" + command.encode()
    assert dispatcher.receive(message(envelope, caller(user, connection), key), NOW) == b""


def test_a_cancelled_request_that_is_queued_is_not_run(dispatcher: Dispatcher) -> None:
    for uid in ("a", "b"):
        dispatcher.receive(message(asked(uid), caller()), NOW)
    cancel(dispatcher, "a")
    assert run(dispatcher)[1].uid == "b"
    assert dispatcher.next(NOW) == (None, [])
    assert dict(dispatcher.counts) == {"requests": 2, "answered": 1, "cancelled": 1}
    assert len(dispatcher.live) == 0


@pytest.mark.parametrize("outcome", ["result", "error", "wrong type"])
def test_a_cancelled_request_that_runs_gets_no_response(dispatcher: Dispatcher, outcome: str) -> None:
    dispatcher.receive(message(asked(), caller()), NOW)
    task, _ = dispatcher.next(NOW)
    assert task is not None
    assert not task.request.cancelled
    cancel(dispatcher)
    cancel(dispatcher)
    assert task.request.cancelled
    if outcome == "error":
        assert dispatcher.failed(task, LookupError("x")) == b""
    else:
        assert dispatcher.answered(task, cast(Any, b"x" if outcome == "result" else 5)) == b""
    assert dict(dispatcher.counts) == {"requests": 1, "cancelled": 1, "stray_cancels": 1}
    assert len(dispatcher.live) == 0


@pytest.mark.parametrize("wrong", [{"uid": "other"}, {"connection": 8}, {"connection": 8, "user": 2}, {"command": "second"}], ids=str)
def test_only_the_connection_of_a_request_cancels_it(dispatcher: Dispatcher, wrong: dict[str, Any]) -> None:
    """User B has learned the uid of a request of user A as a listener, and cannot cancel it."""
    dispatcher.add("second", lambda request: request.data, None)
    dispatcher.receive(message(asked(), caller()), NOW)
    cancel(dispatcher, **wrong)
    assert dispatcher.counts["stray_cancels"] == 1
    assert run(dispatcher)[1].data == b"x"


def test_a_flood_of_cancellations_is_counted_and_leaves_nothing_behind(dispatcher: Dispatcher) -> None:
    for number in range(1_000):
        cancel(dispatcher, f"{number}", connection=number)
    assert dict(dispatcher.counts) == {"stray_cancels": 1_000}
    assert (len(dispatcher.live), len(dispatcher._seen)) == (0, 0)
    # A uid that was cancelled before it was used is as good as any other.
    dispatcher.receive(message(asked("5", connection=5), caller(connection=5)), NOW)
    assert run(dispatcher)[1].data == b"x"


def test_a_uid_that_runs_is_not_forgotten(dispatcher: Dispatcher) -> None:
    dispatcher.receive(message(asked("long"), caller()), NOW)
    task, _ = dispatcher.next(NOW)
    for number in range(1_000):
        dispatcher.receive(message(asked(f"{number}"), caller()), NOW)
        run(dispatcher)
    dispatcher.receive(message(asked("long"), caller()), NOW)
    assert dispatcher.counts["duplicate"] == 1
    assert task is not None


def test_a_service_that_does_not_know_the_member_does_not_run_a_cancellation(dispatcher: Dispatcher) -> None:
    """It has expired in 1970, even if the uid has been forgotten, and it wants no response."""
    old = Envelope("echo", "u", expires_seconds=1, sent_at=1)
    assert dispatcher.receive(message(old, caller()), NOW) == b""
    assert dispatcher.next(NOW) == (None, [])
    assert dispatcher.counts["expired"] == 1


def test_another_connections_uid_is_another(dispatcher: Dispatcher) -> None:
    """A user who learns a uid cannot spend it before its owner does."""
    dispatcher.receive(message(asked(connection=8), caller(uid=2, connection=8)), NOW)
    dispatcher.receive(message(asked(), caller()), NOW)
    assert dispatcher.counts["duplicate"] == 0
    assert len(dispatcher.queue) == 2


def test_an_expired_request_is_not_run(dispatcher: Dispatcher) -> None:
    packet = dispatcher.receive(message(asked(), caller()), NOW + 31)
    assert reply(packet)[1].error == "the request expired before it arrived, and was not run"
    assert len(dispatcher.queue) == 0


def test_one_that_expires_while_it_waits_is_not_run(dispatcher: Dispatcher) -> None:
    dispatcher.receive(message(asked(), caller()), NOW)
    task, packets = dispatcher.next(NOW + 31)
    assert task is None
    assert [reply(packet)[1].error for packet in packets] == ["the request expired while it was queued, and was not run"]
    assert dispatcher.counts["expired"] == 1


RELAY = Peer(7, 0, 0, 1, b"!/cred/0/0/1")
"""The relay of a host on which it runs as root."""


def relayed(twins: Twins | None, allow: Allow | None = None) -> tuple[Dispatcher, list[Request]]:
    """Return what serves ``echo`` to other hosts, and the requests that it will have run."""
    seen: list[Request] = []

    def echo(request: Request) -> bytes:
        seen.append(request)
        return request.data

    dispatcher = Dispatcher()
    dispatcher.add("echo", echo, allow, twins)
    return dispatcher, seen


@pytest.mark.parametrize("key", [b"relayed/echo", b"!/conn/3/relayed/echo"])
def test_a_caller_of_another_host_is_not_a_local_user(key: bytes) -> None:
    dispatcher, seen = relayed(Twins(), Allow(users=(0,)))
    assert dispatcher.receive(message(asked(source=1001, destinations=(1002,)), RELAY, key), NOW) == b""
    _, envelope = run(dispatcher)
    assert (envelope.source, envelope.destinations, envelope.data) == (1002, (1001,), b"x")
    (request,) = seen
    assert (request.source, request.caller.uid, request.caller.gid, request.caller.pid) == (1001, -1, -1, -1)
    assert request.caller.key == "!/twin/1001/!/cred/0/0/1"
    assert not Allow(users=(0,), groups=(0,)).admits(request.caller)


def test_other_hosts_are_not_served_unless_the_service_says_so() -> None:
    dispatcher, seen = relayed(None)
    assert dispatcher.patterns(b"!/conn/5/") == [b"rpc/echo\0rpc", b"!/conn/5/rpc/echo"]
    assert dispatcher.receive(message(asked(source=1001), RELAY, b"!/conn/5/relayed/echo"), NOW) == b""
    assert (dispatcher.next(NOW), seen, dispatcher.counts["unknown"]) == ((None, []), [], 1)
    served, _ = relayed(Twins())
    assert served.patterns(b"!/conn/5/") == [b"rpc/echo\0rpc", b"!/conn/5/rpc/echo", b"relayed/echo\0rpc", b"!/conn/5/relayed/echo"]


def test_only_the_hosts_that_are_named_are_served() -> None:
    dispatcher, seen = relayed(Twins((1001,)))
    for source in (1003, 0):
        packet = dispatcher.receive(message(asked(uid=str(source), source=source), RELAY, b"relayed/echo"), NOW)
        assert reply(packet)[1].error == f"twin {source} may not call echo"
    assert (dispatcher.counts["denied"], len(dispatcher.queue), seen) == (2, 0, [])


def test_a_user_cannot_pass_for_another_host() -> None:
    """Not even where no rule of the bus keeps it from sending what only the relay should."""
    other_user = caller(uid=61_002)
    for key in (b"relayed/echo", b"!/conn/3/relayed/echo"):
        dispatcher, seen = relayed(Twins())
        packet = dispatcher.receive(message(asked(source=1001), other_user, key), NOW)
        assert reply(packet)[1].error == "user 61002 is not a relay and cannot call for a remote host"
        assert (dispatcher.counts["denied"], dispatcher.next(NOW), seen) == (1, (None, []), [])
    dispatcher, seen = relayed(Twins(relays=(61_002,)))
    assert dispatcher.receive(message(asked(source=1001), other_user, b"relayed/echo"), NOW) == b""


@pytest.mark.parametrize("number", [0, -1, 1 << 32])
def test_an_invalid_twin(number: int) -> None:
    with pytest.raises(ValueError, match=f"invalid twin {number}: must be 1 to 4294967295"):
        Twins((number,))
    with pytest.raises(LookupError, match="unknown user"):
        Twins(relays=("no-such-user",))


def test_hosts_take_turns_with_users_and_with_each_other() -> None:
    dispatcher, _ = relayed(Twins())
    for number in range(WAITING_PER_USER):
        assert dispatcher.receive(message(asked(uid=f"b{number}", source=1001), RELAY, b"relayed/echo"), NOW) == b""
    packet = dispatcher.receive(message(asked(uid="more", source=1001), RELAY, b"relayed/echo"), NOW)
    assert reply(packet)[1].error == f"busy: {WAITING_PER_USER} requests of twin 1001 are already queued"
    dispatcher.receive(message(asked(uid="c", source=1003), RELAY, b"relayed/echo"), NOW)
    dispatcher.receive(message(asked(uid="a"), RELAY), NOW)
    order = [task.request.uid for task in (dispatcher.next(NOW)[0] for _ in range(4)) if task is not None]
    assert order == ["b0", "c", "a", "b1"]


def test_all_ids_of_a_user_have_the_share_of_one_user(caplog: pytest.LogCaptureFixture) -> None:
    charged = ChargedUsers(SubordinateIds([SubordinateRange(100_000, 10, 1000)]))
    dispatcher = Dispatcher(charged.of)
    dispatcher.add("echo", lambda request: request.data, Allow(users=(1001, 100_001, 100_002)))
    for uid in (100_003, 100_004, 1000):
        denied = dispatcher.receive(message(asked("u", connection=uid), caller(uid, uid)), NOW)
        assert reply(denied)[1].error == f"user {uid} may not call echo"
    assert len(caplog.records) == 2, "the records of the ids count together; the right stays that of the id"
    for number in range(WAITING_PER_USER):
        assert dispatcher.receive(message(asked(f"u{number}"), caller(100_001)), NOW) == b""
    busy = dispatcher.receive(message(asked("u", connection=8), caller(100_002, 8)), NOW)
    assert reply(busy)[1].error == f"busy: {WAITING_PER_USER} requests of user 1000 are already queued"
    assert dispatcher.receive(message(asked("u", connection=9), caller(1001, 9)), NOW) == b""
    charged.ids = SubordinateIds()  # a request counts for the user that was charged for it, whatever the file says then
    turns = [task.request.caller.uid for task in iter(lambda: dispatcher.next(NOW)[0], None)]
    assert turns == [100_001, 1001, *[100_001] * (WAITING_PER_USER - 1)]


def test_a_denied_caller_gets_an_error(caplog: pytest.LogCaptureFixture) -> None:
    dispatcher = Dispatcher()
    dispatcher.add("echo", lambda _request: b"", Allow(users=(1000,)))
    assert reply(dispatcher.receive(message(asked(connection=9), caller(uid=1001, connection=9)), NOW))[1].error == (
        "user 1001 may not call echo"
    )
    assert dispatcher.receive(message(asked(), caller()), NOW) == b""
    assert (dispatcher.counts["denied"], len(dispatcher.queue)) == (1, 1)
    assert "rejected a call of echo by connection 9 (uid 1001, pid 42): user 1001 may not call echo" in caplog.text


def test_allow_knows_names_and_the_systems_groups() -> None:
    me = pwd.getpwuid(os.getuid())
    assert Allow(users=(me.pw_name,)).admits(caller(uid=me.pw_uid, gid=99_999))
    assert Allow(groups=(grp.getgrgid(me.pw_gid).gr_name,)).admits(caller(uid=me.pw_uid, gid=99_999))
    assert Allow(groups=(99_998,)).admits(caller(uid=99_999, gid=99_998))
    assert not Allow(groups=(99_997,)).admits(caller(uid=99_999, gid=99_998))
    assert not Allow().admits(caller(uid=0))


@pytest.mark.parametrize(("users", "groups", "says"), [(("no-such-user",), (), "unknown user"), ((), ("no-such-group",), "unknown group")])
def test_an_unknown_name_is_rejected_immediately(users: tuple[str, ...], groups: tuple[str, ...], says: str) -> None:
    with pytest.raises(LookupError, match=says):
        Allow(users=users, groups=groups)


def failing(dispatcher: Dispatcher, error: Exception) -> str:
    dispatcher.receive(message(asked(uid=str(id(error))), caller()), NOW)
    task, _ = dispatcher.next(NOW)
    assert task is not None
    return reply(dispatcher.failed(task, error))[1].error


def test_the_caller_gets_the_type_of_an_exception_and_the_log_its_traceback(
    dispatcher: Dispatcher, caplog: pytest.LogCaptureFixture
) -> None:
    def break_down() -> None:
        raise KeyError("two\nlines")

    try:
        break_down()
    except KeyError as error:
        words = failing(dispatcher, error)
    assert words == "the handler raised KeyError"
    assert "break_down" in caplog.text
    assert "two" in caplog.text


def test_a_service_error_is_its_words_alone(dispatcher: Dispatcher, caplog: pytest.LogCaptureFixture) -> None:
    assert failing(dispatcher, ServiceError("no such account")) == "no such account"
    assert caplog.records == []


def test_long_words_are_cut(dispatcher: Dispatcher) -> None:
    assert 500 < len(failing(dispatcher, ServiceError("ä" * 10_000))) < 2_000


def test_an_invalid_response_fails(dispatcher: Dispatcher, caplog: pytest.LogCaptureFixture) -> None:
    dispatcher.receive(message(asked(), caller()), NOW)
    task, _ = dispatcher.next(NOW)
    assert task is not None
    careless = cast(bytes, 5)
    assert reply(dispatcher.answered(task, careless))[1].error == "the result of the handler must be bytes, str or None, not int"
    assert "the result of the handler must be bytes, str or None, not int" in caplog.text


@pytest.mark.parametrize(("result", "data"), [(b"\0", b"\0"), ("ä", "ä".encode()), (None, b""), (bytearray(b"x"), b"x")])
def test_what_a_handler_may_return(dispatcher: Dispatcher, result: bytes | str | None, data: bytes) -> None:
    dispatcher.receive(message(asked(), caller()), NOW)
    task, _ = dispatcher.next(NOW)
    assert task is not None
    assert reply(dispatcher.answered(task, result))[1].data == data


def test_an_answer_that_no_packet_holds(dispatcher: Dispatcher) -> None:
    dispatcher.receive(message(asked(), caller()), NOW)
    task, _ = dispatcher.next(NOW)
    assert task is not None
    assert "do not fit into a packet" in reply(dispatcher.answered(task, bytes(MAX_PACKET_BYTES)))[1].error


def test_users_take_turns(dispatcher: Dispatcher) -> None:
    for number in range(5):
        dispatcher.receive(message(asked(uid=f"b{number}", connection=8), caller(uid=2, connection=8)), NOW)
    dispatcher.receive(message(asked(uid="a0"), caller()), NOW)
    dispatcher.receive(message(asked(uid="a1"), caller()), NOW)
    order = []
    while (task := dispatcher.next(NOW)[0]) is not None:
        order.append(task.request.uid)
    assert order == ["b0", "a0", "b1", "a1", "b2", "b3", "b4"]


def test_a_flood_of_one_user_is_rejected_as_busy_and_blocks_no_other_user(dispatcher: Dispatcher) -> None:
    for number in range(WAITING_PER_USER):
        assert dispatcher.receive(message(asked(uid=f"b{number}", connection=8), caller(uid=2, connection=8)), NOW) == b""
    packet = dispatcher.receive(message(asked(uid="more", connection=8), caller(uid=2, connection=8)), NOW)
    assert reply(packet)[1].error == f"busy: {WAITING_PER_USER} requests of user 2 are already queued"
    assert dispatcher.receive(message(asked(), caller()), NOW) == b""
    assert dispatcher.counts["busy"] == 1


def test_waiting_callers_get_an_error_when_the_service_stops(dispatcher: Dispatcher) -> None:
    dispatcher.receive(message(asked(), caller()), NOW)
    dispatcher.receive(message(asked(uid="v", reply_to=""), caller()), NOW)
    assert [reply(packet)[1].error for packet in dispatcher.stop()] == ["the service stopped before it ran the request"]
    assert dispatcher.counts["stopped"] == 2
    assert list(dispatcher.stop()) == []


def test_what_is_subscribed_to(dispatcher: Dispatcher) -> None:
    assert dispatcher.patterns(b"!/conn/5/") == [b"rpc/echo\0rpc", b"!/conn/5/rpc/echo"]
    with pytest.raises(ValueError, match="nothing to serve"):
        Dispatcher().patterns(b"!/conn/5/")


def test_a_command_is_served_once(dispatcher: Dispatcher) -> None:
    with pytest.raises(ValueError, match="already serves it"):
        dispatcher.add("echo", lambda _request: b"", None)
    with pytest.raises(ValueError, match=r"the command 'a\*' contains \*"):
        dispatcher.add("a*", lambda _request: b"", None)


def test_services_are_served_by_one_call_of_this_process(dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher.begin_serving()
    with pytest.raises(RuntimeError, match=r"serve\(\) already runs on this bus"):
        dispatcher.begin_serving()
    with pytest.raises(RuntimeError, match=r"cannot add the service 'late' while serve\(\) runs"):
        dispatcher.add("late", lambda _request: b"", None)
    monkeypatch.setattr("os.getpid", lambda: 1)
    dispatcher.begin_serving()  # as in a child process
    dispatcher.end_serving()
    dispatcher.add("late", lambda _request: b"", None)


def test_what_the_bus_says_is_counted(dispatcher: Dispatcher, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    dispatcher.note_refusal(RemoteRefusal(ErrorCode.EPERM, "a rule"))
    dispatcher.note_missing(5)
    dispatcher.note_missing(0)
    assert (dispatcher.counts["refused"], dispatcher.counts["lost"]) == (1, 5)
    assert ["EPERM a rule" in caplog.text, "discarded 5 packets" in caplog.text] == [True, True]
