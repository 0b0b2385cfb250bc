"""Who gets which answer, above all when calls are given up and packets are lost; and what the answers mean."""

from __future__ import annotations

import pytest

from sbus.bus_calls import (
    AddressCall,
    Call,
    Expects,
    PendingReplies,
    ReceiptCall,
    RequestCall,
    is_withheld,
    members_question,
    parse_members,
    receipt_count,
)
from sbus.errors import AnswerLost, Closed, RemoteRefusal, Unanswered
from sbus.protocol.credentials import Peer
from sbus.protocol.errors import ErrorCode, ProtocolError

DENIED = RemoteRefusal(ErrorCode.EPERM, "no")


def ask(pending: PendingReplies, key: bytes = b"k", expects: Expects = Expects.ANSWER) -> tuple[Call, bytes]:
    call = Call(f"CMSG {key.decode()}", expects, key)
    return call, pong(pending.close_section(call))


def pong(ping: bytes) -> bytes:
    head, _, token = ping.partition(b"\0")
    assert head == b"CMSG !/bus/ping"
    return token


def test_an_answer_settles_its_call_before_the_pong() -> None:
    pending = PendingReplies()
    call, end = ask(pending)
    assert pending.answered(b"k", b"yes")
    assert call.result() == b"yes"
    assert pending.passed(end) == 1
    assert len(pending) == 0


def test_a_late_answer_never_reaches_the_next_call() -> None:
    pending = PendingReplies()
    given_up, first_end = ask(pending)
    waiting, second_end = ask(pending)
    assert pending.answered(b"k", b"late")
    assert given_up.answer == b"late"
    assert not waiting.is_done
    pending.passed(first_end)
    assert pending.answered(b"k", b"mine")
    pending.passed(second_end)
    assert waiting.result() == b"mine"


def test_two_answers_for_one_call_do_not_reach_the_next() -> None:
    pending = PendingReplies()
    first, _ = ask(pending)
    second, _ = ask(pending)
    pending.answered(b"k", b"one")
    pending.answered(b"k", b"again")
    assert first.result() == b"one"
    assert not second.is_done


def test_a_reply_with_another_key_matches_no_request() -> None:
    pending = PendingReplies()
    call, _ = ask(pending)
    assert not pending.answered(b"other", b"")
    assert not call.is_done


def test_an_error_belongs_to_its_section() -> None:
    pending = PendingReplies()
    before = pong(pending.close_section())
    call, _ = ask(pending)
    assert not pending.refused(DENIED)
    pending.passed(before)
    assert pending.refused(DENIED)
    with pytest.raises(RemoteRefusal, match="the bus refused CMSG k: EPERM no"):
        call.result()
    assert not pending.refused(DENIED)


def test_an_error_with_another_cause_matches_no_request() -> None:
    pending = PendingReplies()
    call, _ = ask(pending)
    assert not pending.refused(RemoteRefusal(ErrorCode.ENOBUFS, "queue is full"))
    assert not call.is_done
    pinging = PendingReplies()
    call, _ = ask(pinging, expects=Expects.PONG)
    assert not pinging.refused(RemoteRefusal(ErrorCode.EPROTO, "malformed"))
    assert not call.is_done


def test_silence_up_to_the_pong_is_consent() -> None:
    pending = PendingReplies()
    call, end = ask(pending, expects=Expects.SILENCE)
    assert not pending.answered(b"k", b"")
    assert not call.is_done
    pending.passed(end)
    assert call.result() == b""


def test_a_missing_reply_is_reported_at_the_pong() -> None:
    pending = PendingReplies()
    call, end = ask(pending)
    pending.passed(end)
    with pytest.raises(Unanswered, match="CMSG k"):
        call.result()


def test_after_a_loss_nothing_is_given_to_anybody_until_a_pong() -> None:
    pending = PendingReplies()
    asked, _ = ask(pending)
    subscribing, _ = ask(pending, expects=Expects.SILENCE)
    pinging, end = ask(pending, expects=Expects.PONG)
    assert pending.lost()
    assert not pending.answered(b"k", b"whose?")
    assert not pending.refused(DENIED)
    pending.passed(end)
    for call in (asked, subscribing):
        with pytest.raises(AnswerLost):
            call.result()
    assert pinging.result() == b""
    after, _ = ask(pending)
    assert pending.answered(b"k", b"clear again")
    assert after.result() == b"clear again"


def test_a_loss_without_pending_requests_affects_none() -> None:
    assert not PendingReplies().lost()


def test_a_pong_that_was_lost_fails_its_call() -> None:
    pending = PendingReplies()
    pinging, _ = ask(pending, expects=Expects.PONG)
    second, end = ask(pending, expects=Expects.PONG)
    assert pending.passed(end) == 2
    with pytest.raises(AnswerLost):
        pinging.result()
    assert second.result() == b""


@pytest.mark.parametrize("payload", [b"", b"1", b"sbus/", b"sbus/x", b"sbus/99", b"sbus/" + b"1" * 5000])
def test_other_pongs_are_not_the_ledgers(payload: bytes) -> None:
    pending = PendingReplies()
    call, _ = ask(pending, expects=Expects.PONG)
    assert pending.passed(payload) is None
    assert not call.is_done


def test_the_end_fails_everybody_once() -> None:
    pending = PendingReplies()
    call, _ = ask(pending)
    reported: list[bool] = []
    call.on_done.append(lambda: reported.append(True))
    pending.close_section()
    pending.fail(lambda: Closed("the bus"))
    call.finish(b"too late")
    with pytest.raises(Closed):
        call.result()
    assert reported == [True]
    assert len(pending) == 0


def test_members() -> None:
    payload = b'{"members":[{"id":1,"cred":"!/cred/100/1000/5","unit":"x"}],"next":7,"more":1}'
    assert parse_members(payload) == ((Peer(1, 1000, 100, 5, b"!/cred/100/1000/5"),), 7)
    assert parse_members(b'{"members":[],"next":null}') == ((), None)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{}",
        b'{"members":[]}',
        b'{"members":[5],"next":null}',
        b'{"members":[{"id":1}],"next":null}',
        b'{"members":[{"id":-1,"cred":"!/cred/1/1/1"}],"next":null}',
        b'{"members":[{"id":true,"cred":"!/cred/1/1/1"}],"next":null}',
        b'{"members":[{"id":1,"cred":"absent"}],"next":null}',
        b'{"members":[],"next":"x"}',
        b"[" * 100_000,
    ],
)
def test_what_no_bus_answers(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_members(payload)


def test_the_question_for_a_page() -> None:
    assert members_question(b"rpc/a") == b"rpc/a"
    assert members_question(b"rpc/a", 12) == b"rpc/a\x0012"


@pytest.mark.parametrize(
    ("payload", "count"),
    [(b"t\x003", 3), (b"t\x000", 0), (b"u\x003", None), (b"t\x00x", None), (b"t", None), (b"", None), (b"t\x00" + b"9" * 5_000, None)],
)
def test_receipts(payload: bytes, count: int | None) -> None:
    assert receipt_count(b"t", payload) == count


def test_a_receipt_is_for_the_publication_of_its_section() -> None:
    pending, call = PendingReplies(), ReceiptCall(b"t")
    pending.close_section(call)
    assert not pending.answered(b"!/bus/receipt", b"other\x005")
    assert pending.answered(b"!/bus/receipt", b"t\x005")
    assert (call.is_done, call.recipients) == (True, 5)


def test_a_receipt_that_withholds_the_number_is_one_all_the_same() -> None:
    assert is_withheld(b"t", b"t\0-")
    assert [is_withheld(b"t", payload) for payload in (b"u\0-", b"t\x000", b"t\0--", b"t", b"-", b"")] == [False] * 6
    pending, call = PendingReplies(), ReceiptCall(b"t")
    pending.close_section(call)
    assert not pending.answered(b"!/bus/receipt", b"other\0-")
    assert pending.answered(b"!/bus/receipt", b"t\0-")
    assert (call.is_done, call.error, call.recipients) == (True, None, None)


def test_a_request_of_which_nothing_is_said_is_not_undeliverable() -> None:
    pending, call = PendingReplies(), RequestCall("a call", b"t")
    pending.close_section(call)
    assert pending.answered(b"!/bus/receipt", b"t\0-")
    assert not call.is_undeliverable


def test_a_request_gathers_what_comes_in_its_section() -> None:
    pending, call = PendingReplies(), RequestCall("a call", b"t")
    pending.close_section(call)
    assert pending.answered(b"!/bus/members", b"page")
    assert not pending.answered(b"!/bus/members", b"another")
    assert not pending.answered(b"!/bus/receipt", b"u\x001\x0012")
    assert pending.answered(b"!/bus/receipt", b"t\x000")
    assert (call.members, call.recipients, call.is_undeliverable, call.is_done) == (b"page", None, True, False)
    pending.passed(b"sbus/1")
    assert (call.is_done, call.error, call.expects) == (True, None, Expects.SILENCE)


@pytest.mark.parametrize(
    ("receipt", "recipients"),
    [(b"t\x002\x0012,7", (12, 7)), (b"t\x001\x0012", (12,)), (b"t\x00100", None), (b"t\0-", None)],
)
def test_the_receipt_of_a_request_lists_its_recipients(receipt: bytes, recipients: tuple[int, ...] | None) -> None:
    pending, call = PendingReplies(), RequestCall("a call", b"t")
    pending.close_section(call)
    assert pending.answered(b"!/bus/receipt", receipt)
    assert (call.recipients, call.is_undeliverable) == (recipients, False)


@pytest.mark.parametrize("listed", [b"", b"1,", b"1,,2", b"-1", b"x", b"1" * 21])
def test_an_invalid_list_of_recipients_is_an_error_of_the_bus(listed: bytes) -> None:
    pending, call = PendingReplies(), RequestCall("a call", b"t")
    pending.close_section(call)
    with pytest.raises(ProtocolError, match="invalid list of recipients"):
        pending.answered(b"!/bus/receipt", b"t\x001\0" + listed)


def test_the_address_is_set_before_callbacks_run() -> None:
    learnt: list[bytes] = []
    call = AddressCall(learnt.append)
    call.on_done.append(lambda: learnt.append(b"told"))
    call.finish(b"!/conn/1/")
    call.finish(b"!/conn/2/")
    assert learnt == [b"!/conn/1/", b"told"]
