"""Who gets which answer, above all when calls are given up and packets are lost."""

from __future__ import annotations

import pytest

from sbusd.client.errors import AnswerLost, Closed, RemoteRefusal, Unanswered
from sbusd.client.pending_replies import Call, Expects, PendingReplies
from sbusd.protocol.errors import ErrorCode

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


def test_an_answer_under_another_key_is_nobodys() -> None:
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


def test_what_no_request_causes_is_nobodys() -> None:
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


def test_no_answer_up_to_the_pong_is_told() -> None:
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


def test_a_loss_with_nothing_under_way_concerns_nobody() -> None:
    assert not PendingReplies().lost()


def test_a_pong_that_was_lost_fails_its_call() -> None:
    pending = PendingReplies()
    pinging, _ = ask(pending, expects=Expects.PONG)
    second, end = ask(pending, expects=Expects.PONG)
    assert pending.passed(end) == 2
    with pytest.raises(AnswerLost):
        pinging.result()
    assert second.result() == b""


@pytest.mark.parametrize("payload", [b"", b"1", b"sbusd.client/", b"sbusd.client/x", b"sbusd.client/99", b"sbusd.client/" + b"1" * 5000])
def test_other_pongs_are_not_the_ledgers(payload: bytes) -> None:
    pending = PendingReplies()
    call, _ = ask(pending, expects=Expects.PONG)
    assert pending.passed(payload) is None
    assert not call.is_done


def test_the_end_fails_everybody_once() -> None:
    pending = PendingReplies()
    call, _ = ask(pending)
    told: list[bool] = []
    call.on_done.append(lambda: told.append(True))
    pending.close_section()
    pending.fail(lambda: Closed("the bus"))
    call.finish(b"too late")
    with pytest.raises(Closed):
        call.result()
    assert told == [True]
    assert len(pending) == 0
