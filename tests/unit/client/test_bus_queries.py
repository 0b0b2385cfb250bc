"""Calls to the bus with answers of more than one payload."""

from __future__ import annotations

import pytest

from sbusd.client.bus_queries import AddressCall, ReceiptCall, RequestCall, is_withheld, members_question, parse_members, receipt_count
from sbusd.client.pending_replies import Expects, PendingReplies
from sbusd.protocol.errors import ProtocolError
from sbusd.protocol.peers import Peer


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
        b'{"members":[{"id":1,"cred":"nobody"}],"next":null}',
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
    assert not pending.answered(b"!/bus/receipt", b"t\x001")
    assert pending.answered(b"!/bus/receipt", b"t\x000")
    assert (call.members, call.is_undeliverable, call.is_done) == (b"page", True, False)
    pending.passed(b"sbusd.client/1")
    assert (call.is_done, call.error, call.expects) == (True, None, Expects.SILENCE)


def test_the_address_is_learnt_before_anybody_is_told() -> None:
    learnt: list[bytes] = []
    call = AddressCall(learnt.append)
    call.on_done.append(lambda: learnt.append(b"told"))
    call.finish(b"!/conn/1/")
    call.finish(b"!/conn/2/")
    assert learnt == [b"!/conn/1/", b"told"]
