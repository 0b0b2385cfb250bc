"""The requests that wait, without any bus: whose answers count, and whose end ends them."""

from __future__ import annotations

import json

import pytest

from sbus.bus_calls import Call, Expects
from sbus.errors import AnswerLost, Disconnected, NoRecipient, PeerDisconnected, RemoteError, RemoteRefusal, SbusError
from sbus.items import Message
from sbus.protocol.credentials import Peer, unknown_peer
from sbus.protocol.envelope import Envelope
from sbus.protocol.errors import ErrorCode
from sbus.rpc.pending_requests import PendingRequest, PendingRequests

HERE = b"!/conn/3/ret/"


class Wire:
    """Notes what a table sends."""

    def __init__(self) -> None:
        self.address = b"!/conn/3/"
        self.sent: list[tuple[Call, bytes]] = []
        self.quiet: list[bytes] = []

    def send_call(self, call: Call, *packets: bytes) -> Call:
        self.sent.append((call, b"".join(packets)))
        return call

    def send_quietly(self, packet: bytes) -> None:
        self.quiet.append(packet)


def peer(connection: int) -> Peer:
    return Peer(connection, 1000, 100, 42, b"!/cred/100/1000/42")


ONE, TWO, THREE = peer(1), peer(2), peer(3)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def table(wire: Wire) -> PendingRequests:
    made = PendingRequests(wire)
    made.answers = HERE
    return made


def give(table: PendingRequests, pending: PendingRequest, sender: Peer | None, data: bytes = b"x", error: str = "") -> bool:
    envelope = Envelope(pending.command, pending.uid, data, error=error)
    return table.take(Message(table.reply_key(pending), envelope.encode(), sender))


def gone(connection: int) -> Message:
    return Message(b"!/event/disconnect/%d" % connection, b"{}")


def watch(table: PendingRequests, *connections: int) -> None:
    for connection in connections:
        table.watch(unknown_peer(connection), lambda: Call("SUB", Expects.SILENCE))


def test_every_request_has_a_key_that_cannot_be_guessed(table: PendingRequests) -> None:
    keys = {table.reply_key(table.open("c", b"rpc/c")) for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == len(HERE) + 32 for key in keys)


def test_a_flood_of_another_user_does_not_displace_an_answer_that_comes_first(table: PendingRequests) -> None:
    pending = table.open("echo", b"rpc/echo")
    attackers = [Peer(number, 1001, 100, 42, b"!/cred/100/1001/42") for number in range(50, 60)]
    for attacker in attackers * 5:
        give(table, pending, attacker, b"forged")
    assert table.strays == 34
    give(table, pending, ONE, b"true")
    table.resolve(pending, [ONE], [])
    assert (pending.is_done, pending.answer.data, table.strays) == (True, b"true", 50)


def test_all_ids_of_a_user_hold_the_answers_of_one_user(table: PendingRequests) -> None:
    table.charged = {1000: 1000, **dict.fromkeys(range(100_000, 100_050), 1001)}.__getitem__
    pending = table.open("echo", b"rpc/echo")
    for uid in range(100_000, 100_050):
        give(table, pending, Peer(uid, uid, 100, 42, b"!/cred/100/%d/42" % uid), b"forged")
    assert table.strays == 34


def test_an_answer_that_comes_first_is_held(table: PendingRequests) -> None:
    pending = table.open("c", b"rpc/c")
    assert give(table, pending, ONE)
    assert not pending.is_done
    table.resolve(pending, [ONE, TWO], [])
    assert (pending.is_done, pending.error, pending.answerer) == (True, None, ONE)
    assert table.strays == 0


def test_held_answers_of_other_users_are_dropped(table: PendingRequests) -> None:
    pending = table.open("c", b"rpc/c")
    for _ in range(20):
        give(table, pending, THREE)
    table.resolve(pending, [ONE], [])
    assert not pending.is_done
    assert table.strays == 20
    give(table, pending, ONE, error="no")
    assert isinstance(pending.error, RemoteError)


def test_an_answer_without_sender_does_not_count(table: PendingRequests) -> None:
    pending = table.open("c", b"rpc/c", ONE)
    assert give(table, pending, None)
    assert (pending.is_done, table.strays) == (False, 1)


def test_only_the_first_answer_counts(table: PendingRequests) -> None:
    pending = table.open("c", b"rpc/c")
    table.resolve(pending, [ONE, TWO], [])
    give(table, pending, ONE, b"first")
    give(table, pending, TWO, b"second")
    assert (pending.answer.data, table.strays) == (b"first", 1)


def test_it_ends_with_the_last_who_could_answer(table: PendingRequests) -> None:
    pending = table.open("c", b"rpc/c")
    table.resolve(pending, [ONE, TWO], [])
    table.take(gone(1))
    assert not pending.is_done
    table.take(gone(2))
    assert isinstance(pending.error, PeerDisconnected)


def test_who_went_before_it_was_known_is_remembered(table: PendingRequests) -> None:
    pending = table.open("c", b"rpc/c")
    table.take(gone(1))
    table.resolve(pending, [ONE], [])
    assert isinstance(pending.error, PeerDisconnected)


def test_a_call_without_a_recipient_is_reported(table: PendingRequests) -> None:
    pending = table.open("c", b"rpc/c")
    table.resolve(pending, [], [])
    assert isinstance(pending.error, NoRecipient)


def test_one_who_has_gone_may_have_run_it(table: PendingRequests) -> None:
    pending = table.open("c", b"rpc/c")
    table.resolve(pending, [], [ONE])
    assert isinstance(pending.error, PeerDisconnected)


def test_undelivered_is_more_exact_than_gone(table: PendingRequests) -> None:
    pending = table.open("c", b"rpc/c", ONE)
    table.take(gone(1))
    assert isinstance(pending.error, PeerDisconnected)
    pending.undelivered()
    assert isinstance(pending.error, NoRecipient)


def test_an_event_is_not_consumed_and_a_reply_is(table: PendingRequests) -> None:
    assert not table.take(gone(1))
    assert table.watches(b"!/event/disconnect/1")
    assert not table.watches(b"!/event/connect/1")
    assert table.take(Message(HERE + b"unknown", b"", ONE))
    assert not table.take(Message(b"!/conn/3/other", b"", ONE))


def test_a_peer_that_has_gone_is_watched_no_more(table: PendingRequests, wire: Wire) -> None:
    watch(table, 1)
    table.take(gone(1))
    table.take(gone(1))
    assert wire.quiet == [b"UNSUB !/event/disconnect/1"]


@pytest.mark.parametrize("digits", [b"", b"x", b"1" * 5_000, b"-1"])
def test_an_event_of_an_unknown_connection(table: PendingRequests, digits: bytes) -> None:
    assert not table.take(Message(b"!/event/disconnect/" + digits, b""))


def test_watches_are_bounded_but_not_of_those_who_are_waited_for(table: PendingRequests, wire: Wire) -> None:
    pending = table.open("c", b"rpc/c", ONE)
    watch(table, *range(1, 1_027))
    assert wire.quiet == [b"UNSUB !/event/disconnect/2", b"UNSUB !/event/disconnect/3"]
    assert not pending.is_done


def test_a_watch_that_the_bus_refused_is_not_asked_for_again(table: PendingRequests) -> None:
    refused = Call("SUB", Expects.SILENCE)
    watched = table.watch(unknown_peer(1), lambda: refused)
    refused.finish(error=RemoteRefusal(ErrorCode.EPERM, "a rule"))
    assert watched.is_blind
    assert table.watch(unknown_peer(1), lambda: Call("SUB", Expects.SILENCE)) is watched


def test_a_watch_of_which_nothing_is_known_is_asked_for_again(table: PendingRequests) -> None:
    lost = Call("SUB", Expects.SILENCE)
    watched = table.watch(unknown_peer(1), lambda: lost)
    lost.finish(error=SbusError("lost"))
    assert table.watch(unknown_peer(1), lambda: Call("SUB", Expects.SILENCE)) is not watched


def test_who_serves_is_remembered_until_it_is_doubted(table: PendingRequests) -> None:
    watch(table, 1)
    assert table.service(1, b"rpc/c") is None
    assert not table.knows(b"rpc/c")
    table.watch(unknown_peer(1), lambda: Call("SUB", Expects.SILENCE)).serves.add(b"rpc/c")
    assert table.service(1, b"rpc/c") == unknown_peer(1)
    assert table.knows(b"rpc/c")
    table.doubt(1, b"rpc/c")
    assert table.service(1, b"rpc/c") is None
    assert not table.knows(b"rpc/c")


@pytest.mark.parametrize("known", [True, False])
def test_after_a_loss_the_callees_are_asked_for_again(table: PendingRequests, wire: Wire, known: bool) -> None:
    pending = table.open("c", b"rpc/c")
    if known:
        table.resolve(pending, [ONE, TWO], [])
    table.lost()
    if not known:
        assert wire.sent == []
        table.resolve(pending, [ONE, TWO], [])
    calls = {packet: call for call, packet in wire.sent}
    assert set(calls) == {b"CMSG !/bus/members\0!/conn/1/rpc/c", b"CMSG !/bus/members\0!/conn/2/rpc/c"}
    there = {"members": [{"id": 1, "cred": "!/cred/100/1000/42"}], "next": None}
    calls[b"CMSG !/bus/members\0!/conn/1/rpc/c"].finish(json.dumps(there).encode())
    calls[b"CMSG !/bus/members\0!/conn/2/rpc/c"].finish(b'{"members":[],"next":null}')
    assert pending.callees == {1: ONE}
    assert not pending.is_done


def test_after_many_losses_each_callee_is_asked_for_once(table: PendingRequests, wire: Wire) -> None:
    """A publisher that makes this client lose messages does not make it send more with each of them."""
    pending = table.open("c", b"rpc/c")
    table.resolve(pending, [ONE], [])
    for _ in range(100):
        table.lost()
    (question,) = (call for call, _ in wire.sent)
    wire.sent.clear()
    question.finish(error=AnswerLost("CMSG"))
    assert [packet for _, packet in wire.sent] == [b"CMSG !/bus/members\0!/conn/1/rpc/c"]
    wire.sent.pop()[0].finish(b'{"members":[],"next":null}')
    assert isinstance(pending.error, PeerDisconnected)
    table.lost()
    assert wire.sent == []


def test_the_end_of_the_connection_fails_all(table: PendingRequests) -> None:
    waiting = [table.open("c", b"rpc/c"), table.open("d", b"rpc/d", ONE)]
    reported: list[int] = []
    waiting[0].on_done = lambda: reported.append(1)
    table.disconnected(lambda: Disconnected("there"))
    assert all(isinstance(each.error, Disconnected) for each in waiting)
    assert (reported, table.answers) == ([1], b"")
    for each in waiting:
        table.close(each)
