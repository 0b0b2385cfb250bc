"""Requests and replies are joined by their own number only."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_archive.record.calls import CallRecognizer
from sbus_archive.record.schema import Role

BOOK = CallRecognizer("alpha", "boot")
RET = "!/conn/7/ret/1"


def envelope(**members: object) -> bytes:
    return json.dumps({"ver": 1, "uid": "u1", "cmd": "add", "exp": 30, "dat": "", "ret": RET, "err": "", **members}).encode()


@pytest.mark.parametrize("key", [b"rpc/add", b"!/conn/9/rpc/add", b"relay/1002/add", b"relayed/add", b"!/conn/9/relayed/add"])
def test_a_request_and_its_reply_have_one_number(key: bytes) -> None:
    request = BOOK.part(key, envelope(), 7)
    reply = BOOK.part(RET.encode(), envelope(ret=""), 9)
    assert request is not None
    assert reply is not None
    assert (request.role, request.command, request.expires_seconds, request.failed) == (Role.REQUEST, "add", 30, None)
    assert (reply.role, reply.command, reply.expires_seconds, reply.failed) == (Role.REPLY, "add", None, False)
    assert request.call_id == reply.call_id
    assert -(2**63) <= request.call_id < 2**63


def test_a_cancellation_is_not_a_request_and_hides_no_reply() -> None:
    assert BOOK.part(b"!/conn/9/rpc/add", envelope(cancel=1), 7) is None
    assert BOOK.part(RET.encode(), envelope(cancel=1), 9) is not None


def test_a_reply_with_an_error_has_failed() -> None:
    reply = BOOK.part(RET.encode(), envelope(err="no such account"), 9)
    assert reply is not None
    assert reply.failed is True


@pytest.mark.parametrize(
    ("book", "sender", "changes"),
    [
        (BOOK, 8, {}),  # another connection that names the first one's key
        (BOOK, None, {}),
        (BOOK, 7, {"uid": "u2"}),
        (BOOK, 7, {"ret": "!/conn/7/ret/2"}),
        (CallRecognizer("beta", "boot"), 7, {}),
        (CallRecognizer("alpha", "boot2"), 7, {}),
    ],
)
def test_another_call_has_another_number(book: CallRecognizer, sender: int | None, changes: dict[str, str]) -> None:
    mine, other = BOOK.part(b"rpc/add", envelope(), 7), book.part(b"rpc/add", envelope(**changes), sender)
    assert mine is not None
    assert other is not None
    assert mine.call_id != other.call_id


@pytest.mark.parametrize(
    ("key", "payload"),
    [
        (b"a/b", envelope()),
        (b"rpc/", envelope()),
        (b"relay/x/add", envelope()),
        (b"relay/attempt", envelope()),
        (b"!/conn/x/y", envelope()),
        (b"!/cred/1/2/3/rpc/add", envelope()),
        (b"rpc/add", b""),
        (b"rpc/add", b"no json"),
        (b"rpc/add", b"{" * 100_000),
        (b"rpc/add", b'{"a":' * 100_000),
        (b"rpc/add", b'{"exp":' + b"9" * 10_000 + b"}"),
        (b"rpc/add", b"{}"),
        (b"rpc/add", b'{"uid":"u"}'),
        (b"rpc/add", b'{"uid":1,"cmd":"x"}'),
        (b"rpc/add", b"[]"),
        (b"rpc/add", b"\xff{}"),
    ],
)
def test_a_message_that_is_not_a_call_is_none(key: bytes, payload: bytes) -> None:
    assert BOOK.part(key, payload, 7) is None


_NOT_TAKEN: list[dict[str, object]] = [
    {"exp": -1},
    {"exp": 1.5},
    {"uid": ""},
    {"cmd": "\ud800"},
    {"dat": "%"},
    {"ver": 2},
    {"cmd": "x" * 999},
]


@pytest.mark.parametrize("changes", _NOT_TAKEN)
def test_an_envelope_that_clients_reject_is_rejected_here_too(changes: dict[str, object]) -> None:
    assert BOOK.part(b"rpc/add", envelope(**changes), 7) is None


def test_a_request_without_a_timeout_has_no_number_of_seconds() -> None:
    request = BOOK.part(b"rpc/add", envelope(exp=0), 7)
    assert request is not None
    assert request.expires_seconds is None


@given(st.binary(max_size=40), st.binary(max_size=60), st.none() | st.integers(0, 2**63 - 1))
def test_no_message_is_too_odd(rest: bytes, payload: bytes, sender: int | None) -> None:
    for head in (b"", b"rpc/", b"!/conn/7/", b"relay/1/", b"relayed/"):
        for body in (payload, b"{" + payload, b'{"ver":1,"uid":"' + payload.hex().encode() + b'","cmd":"x"}'):
            part = BOOK.part(head + rest, body, sender)
            assert part is None or -(2**63) <= part.call_id < 2**63
