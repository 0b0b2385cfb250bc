"""Messages: the type and default of every member, and a clear error for malformed ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_services.relay.message_model import UNKNOWN_ERROR, InvalidMessageError, RelayMessage, is_reserved


def test_the_defaults_are_the_founding_documents() -> None:
    assert json.loads(RelayMessage.parse(b"{}").encode()) == {
        "ver": 1,
        "uid": "",
        "cmd": "",
        "exp": 0,
        "try": 0,
        "dat": "",
        "src": 0,
        "dst": [],
        "ret": "",
        "shm": "",
        "now": 0,
        "err": "",
    }


def test_parsed_messages_are_encoded_again() -> None:
    text = (
        b'{"ver":1,"uid":"1002.1","cmd":"a","exp":1,"try":2,"dat":"aGk=","src":1,"dst":[2,3],"ret":"r","shm":"","now":4,"err":"\xc3\xa9"}'
    )
    assert RelayMessage.parse(text).encode() == text


@pytest.mark.parametrize("ctx", ['"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"', '"x"', "7", "null"])
def test_a_trace_context_is_kept_or_ignored_and_requests_without_one_keep_their_digest(ctx: str) -> None:
    plain = RelayMessage.parse(b'{"cmd":"a"}')
    message = RelayMessage.parse(b'{"cmd":"a","ctx":%b}' % ctx.encode())
    is_valid = len(ctx) > 50
    assert (b'"ctx"' in message.encode()) is is_valid
    assert (message.digest() == plain.digest()) is not is_valid
    assert message.failure("no", 0).ctx == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "not an object"),
        (b'{"ver": 2}', "ver: "),
        (b'{"ver": true}', "ver: "),
        (b'{"exp": -1}', "exp: "),
        (b'{"exp": 1.5}', "exp: "),
        (b'{"exp": "1"}', "exp: "),
        (b'{"try": 1001}', "try: "),
        (b'{"dat": "?"}', "dat: not valid base64"),
        (b'{"dat": 1}', "dat: "),
        (b'{"dst": 1002}', "dst: "),
        (b'{"dst": ["1002"]}', "dst: "),
        (b'{"dst": [4294967296]}', "dst: "),
        (json.dumps({"dst": [1] * 257}).encode(), "dst: "),
        (b'{"cmd": "a*"}', "cmd: contains *"),
        (b'{"cmd": "a\\u0000"}', "cmd: contains an unprintable character"),
        (b'{"ret": "\\ud800"}', "ret: "),
        (b'{"now": 1e400}', "now: "),
        (b'{"err": null}', "err: "),
    ],
)
def test_an_invalid_message_is_rejected_by_its_member(text: bytes, says: str) -> None:
    with pytest.raises(InvalidMessageError, match=r".") as caught:
        RelayMessage.parse(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refusal_has_the_members_for_a_response() -> None:
    with pytest.raises(InvalidMessageError) as caught:
        RelayMessage.parse(b'{"cmd": "c", "ret": "r", "dst": [1, 2], "exp": -1}')
    assert (caught.value.ret, caught.value.dst, caught.value.cmd) == ("r", (1, 2), "c")
    with pytest.raises(InvalidMessageError) as caught:
        RelayMessage.parse(b'{"cmd": 1, "ret": 2, "dst": [-1], "exp": -1}')
    assert (caught.value.ret, caught.value.dst, caught.value.cmd) == ("", (), "")


RMB_RESPONSE = {"ver": 1, "ref": "1002.1", "dat": "eA==", "dst": "1001", "now": 4}
"""The response of a service of rmb-peer."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, ""),
        ("no", "no"),
        ({"code": 5, "message": "no"}, "no"),
        ({"code": 5}, '{"code": 5}'),
        ({}, UNKNOWN_ERROR),
        (7, "7"),
    ],
)
def test_a_response_of_another_implementation_is_understood(error: object, text: str) -> None:
    payload = json.dumps({**RMB_RESPONSE, "err": error, "tag": None, "shm": None}).encode()
    message = RelayMessage.parse(payload, any_error=True)
    assert (message.ref, message.dst, message.err, message.tag, message.shm) == ("1002.1", (1001,), text, "", "")


@pytest.mark.parametrize("label", ["x" * 1025, "\ud800", 7, ["x"]])
def test_a_label_that_cannot_be_kept_is_rejected(label: object) -> None:
    for name in ("ref", "tag"):
        with pytest.raises(InvalidMessageError, match=f"^{name}: "):
            RelayMessage.parse(json.dumps({name: label}).encode())


@given(
    st.binary() | st.recursive(st.none() | st.integers() | st.text() | st.floats(), st.lists).map(lambda v: json.dumps({"dst": v}).encode())
)
def test_parsing_is_total(payload: bytes) -> None:
    try:
        message = RelayMessage.parse(payload)
    except InvalidMessageError:
        return
    assert RelayMessage.parse(message.encode()) == message


def test_a_failure_is_an_answer() -> None:
    request = RelayMessage(uid="1002.1", cmd="c", src=1001, dst=(1002,), ret="r", dat="aGk=")
    failure = request.failure("e" * 5_000, 7.9)
    assert (failure.src, failure.dst, failure.now, failure.dat, failure.uid) == (1002, (1001,), 7, "", "1002.1")
    assert RelayMessage.parse(failure.encode()).err == "e" * 1_000


def test_copies_have_the_same_digest_whatever_tries_are_left() -> None:
    request = RelayMessage(uid="1002.1", cmd="c", src=1001, dst=(1002,))
    assert request.digest() == request.with_(try_=4).digest()
    assert request.digest() != request.with_(dat="aGk=").digest()


@pytest.mark.parametrize(("command", "reserved"), [("system", True), ("system.local", True), ("systems", False), ("a.system", False)])
def test_commands_of_the_bus_are_reserved(command: str, reserved: bool) -> None:
    assert is_reserved(command) is reserved
