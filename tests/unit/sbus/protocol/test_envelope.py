"""The envelope, by the plain parser, which imports no pydantic."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.envelope import (
    MAX_CONTEXT_BYTES,
    MAX_DESTINATIONS,
    NUMBER_LIMITS,
    TEXT_LIMITS,
    Envelope,
    call_digest,
    command_of,
    command_problem,
    context_problem,
    destination_of,
    is_relayed,
    parse_envelope,
    read_context,
    relay_key,
    relayed_key,
    service_key,
)
from sbus.protocol.errors import ErrorCode, ProtocolError

FULL = Envelope(
    command="wallet.stellar.balance.tft",
    uid="1002.117",
    data=b"\0\xffdata",
    reply_to="!/conn/7/ret/5bf6bc",
    expires_seconds=3600,
    sent_at=1621944461,
    error="destination not found",
    source=1001,
    destinations=(1002, 1003),
    tries=4,
    schema="x",
)

SEED = """{"ver": 1, "uid": "", "cmd": "wallet.stellar.balance.tft", "exp": 3600, "try": 4, "dat": "R0E3", "src": 0, "dst": [1002],
 "ret": "5bf6bc0c7-e87d799fbc73", "shm": "", "now": 1621944461, "err": ""}"""


def test_there_and_back() -> None:
    assert parse_envelope(FULL.encode()) == FULL


def test_the_members_have_the_order_of_the_founding_document() -> None:
    assert list(json.loads(FULL.encode())) == list(json.loads(SEED))


def test_the_founding_documents_own_request_once_it_has_a_uid() -> None:
    envelope = parse_envelope(SEED.replace('"uid": ""', '"uid": "1002.174"').encode())
    assert (envelope.data, envelope.destinations, envelope.tries) == (b"GA7", (1002,), 4)


def test_the_shortest_request() -> None:
    assert parse_envelope(b'{"ver":1,"uid":"a","cmd":"b"}') == Envelope("b", "a")


def test_unknown_members_are_ignored() -> None:
    assert parse_envelope(b'{"ver":1,"uid":"a","cmd":"b","tag":[{}],"err2":1e999}') == Envelope("b", "a")


@pytest.mark.parametrize(
    ("members", "names"),
    [
        ({"ver": 2}, "ver"),
        ({"ver": True}, "ver"),
        ({"ver": "1"}, "ver"),
        ({"ver": 1.0}, "ver"),
        ({"uid": ""}, "uid"),
        ({"uid": 7}, "uid"),
        ({"uid": "a\n"}, "uid"),
        ({"uid": "x" * (TEXT_LIMITS["uid"] + 1)}, "uid"),
        ({"cmd": ""}, "cmd"),
        ({"cmd": "a*"}, "cmd"),
        ({"cmd": "a\0"}, "cmd"),
        ({"cmd": "ä" * 129}, "cmd"),
        ({"exp": -1}, "exp"),
        ({"exp": 1.5}, "exp"),
        ({"exp": True}, "exp"),
        ({"exp": NUMBER_LIMITS["exp"] + 1}, "exp"),
        ({"try": None}, "try"),
        ({"try": NUMBER_LIMITS["try"] + 1}, "try"),
        ({"dat": "!!"}, "dat"),
        ({"dat": "R0E"}, "dat"),
        ({"dat": "Rä=="}, "dat"),
        ({"dat": 5}, "dat"),
        ({"src": 1 << 32}, "src"),
        ({"dst": 5}, "dst"),
        ({"dst": ["5"]}, "dst"),
        ({"dst": [True]}, "dst"),
        ({"dst": [-1]}, "dst"),
        ({"dst": [1] * (MAX_DESTINATIONS + 1)}, "dst"),
        ({"ret": "a\0b"}, "ret"),
        ({"ret": "\ud800"}, "ret"),
        ({"ret": "x" * (TEXT_LIMITS["ret"] + 1)}, "ret"),
        ({"shm": []}, "shm"),
        ({"now": -1}, "now"),
        ({"err": None}, "err"),
        ({"err": "x" * (TEXT_LIMITS["err"] + 1)}, "err"),
    ],
)
def test_errors_are_named(members: dict[str, object], names: str) -> None:
    value = {"ver": 1, "uid": "a", "cmd": "b"} | members
    with pytest.raises(ProtocolError, match=f"invalid envelope: {names} ") as caught:
        parse_envelope(json.dumps(value).encode())
    assert caught.value.code is ErrorCode.EINVAL


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", b"{", b"[]", b"1", b"null", b"[" * 100_000, b'{"ver":1,"uid":"a","cmd":"b","exp":' + b"9" * 5_000 + b"}"],
)
def test_a_payload_that_is_not_an_envelope(payload: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_envelope(payload)
    assert caught.value.code is ErrorCode.EINVAL


@pytest.mark.parametrize("missing", ["ver", "uid", "cmd"])
def test_required_members(missing: str) -> None:
    value = {"ver": 1, "uid": "a", "cmd": "b"}
    del value[missing]
    with pytest.raises(ProtocolError, match=missing):
        parse_envelope(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("expires", "sent_at", "now", "is_expired"),
    [(30, 100, 130.9, False), (30, 100, 131.0, True), (0, 100, 1e12, False), (30, 0, 1e12, False), (1, 100, 100.0, False)],
)
def test_when_it_has_expired(expires: int, sent_at: int, now: float, is_expired: bool) -> None:
    assert Envelope("a", "b", expires_seconds=expires, sent_at=sent_at).is_expired(now) is is_expired


def test_the_keys_of_commands() -> None:
    assert service_key("a.b") == b"rpc/a.b"
    assert relay_key(1002, "a.b") == b"relay/1002/a.b"
    assert relayed_key("a.b") == b"relayed/a.b"


@pytest.mark.parametrize(
    ("key", "command"),
    [
        (b"rpc/a/b", "a/b"),
        (b"!/conn/7/rpc/a/b", "a/b"),
        (b"!/conn/7/rpc", None),
        (b"!/conn/rpc/a", None),
        (b"relay/7/a", None),
        (b"relayed/a/b", "a/b"),
        (b"!/conn/7/relayed/a", "a"),
        (b"rpc/\xff", None),
        (b"rpc/", ""),
    ],
)
def test_the_command_of_a_key(key: bytes, command: str | None) -> None:
    assert command_of(key) == command


@pytest.mark.parametrize(
    ("key", "relayed", "destination"),
    [
        (b"relayed/a", True, None),
        (b"!/conn/7/relayed/a", True, None),
        (b"rpc/relayed/a", False, None),
        (b"relay/7/a/b", False, (7, "a/b")),
        (b"relay/4294967295/a", False, (4_294_967_295, "a")),
        (b"relay/4294967296/a", False, None),
        (b"relay/" + b"1" * 5_000 + b"/a", False, None),
        (b"relay/attempt", False, None),
        (b"relay/attempt/a", False, None),
        (b"relay/7", False, None),
        (b"relay//a", False, None),
        (b"relay/-1/a", False, None),
        (b"relay/7/\xff", False, None),
        (b"!/conn/7/relay/7/a", False, None),
    ],
)
def test_the_hosts_of_a_key(key: bytes, relayed: bool, destination: tuple[int, str] | None) -> None:
    assert (is_relayed(key), destination_of(key)) == (relayed, destination)


def test_a_call_has_a_digest_of_its_own() -> None:
    calls = [
        (7, b"!/conn/7/ret/a", "a"),
        (8, b"!/conn/7/ret/a", "a"),
        (7, b"!/conn/7/ret/b", "a"),
        (7, b"!/conn/7/ret/", "aa"),
        (7, b"", ""),
    ]
    digests = [call_digest(*call) for call in calls]
    assert len(set(digests)) == len(calls)
    assert {len(bytes.fromhex(digest)) for digest in digests} == {16}
    assert digests[0] == call_digest(*calls[0])


@pytest.mark.parametrize(("command", "problem"), [("a.b/c-d", ""), ("", "empty"), ("a b", ""), ("a\t", "print"), ("*", "patterns")])
def test_valid_commands(command: str, problem: str) -> None:
    assert problem in command_problem(command)
    assert bool(problem) is bool(command_problem(command))


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = f"00-{TRACE}-{SPAN}-01"
LONG = f"cc-{TRACE}-{SPAN}-01-"


@pytest.mark.parametrize("text", [CONTEXT, f"00-{TRACE}-{SPAN}-ff", LONG, LONG + "x" * (MAX_CONTEXT_BYTES - len(LONG))])
def test_valid_contexts(text: str) -> None:
    assert context_problem(text) == ""
    assert parse_envelope(Envelope("a", "b", context=text).encode()).context == text


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        [CONTEXT],
        "",
        "x",
        CONTEXT.upper(),
        CONTEXT + "\n",
        CONTEXT + "-x",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE[1:]}-{SPAN}-01",
        LONG + "x" * (MAX_CONTEXT_BYTES - len(LONG) + 1),
        LONG + "\u00e4",
    ],
)
def test_a_receiver_ignores_an_invalid_context(value: object) -> None:
    members = {"ver": 1, "uid": "b", "cmd": "a", "ctx": value}
    assert parse_envelope(json.dumps(members).encode()) == Envelope("a", "b")
    if isinstance(value, str):
        assert context_problem(value)


@given(st.text(alphabet="0f-a\n\u0660 x", max_size=80) | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"))
def test_what_is_read_is_valid_ascii_of_bounded_size(text: str) -> None:
    read = read_context(text)
    assert read in {"", text}
    assert len(read.encode("ascii")) <= MAX_CONTEXT_BYTES
