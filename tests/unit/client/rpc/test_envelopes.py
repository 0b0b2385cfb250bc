"""The pydantic model and the plain parser take the same envelopes, refuse the same, and read the same in them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbusd.client.rpc.envelopes import EnvelopeModel, read_envelope
from sbusd.protocol.envelope import MAX_DESTINATIONS, NUMBER_LIMITS, TEXT_LIMITS, Envelope, parse_envelope
from sbusd.protocol.errors import ProtocolError
from tests.unit.protocol.test_envelope import FULL
from tools.stage import ROOT

_ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 1 << 54),
    st.floats(),
    st.text(st.characters(), max_size=8),
    st.sampled_from(["R0E3", "R0E", "a*", "a\n", "\ud800", *("x" * (limit + 1) for limit in TEXT_LIMITS.values())]),
    st.lists(st.one_of(st.integers(-1, 1 << 33), st.booleans(), st.text(max_size=1)), max_size=3),
    st.sampled_from([1, 1.0, [1] * MAX_DESTINATIONS, [1] * (MAX_DESTINATIONS + 1), *NUMBER_LIMITS.values()]),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)
_MEMBERS = ["ver", "uid", "cmd", "exp", "try", "dat", "src", "dst", "ret", "shm", "now", "err", "unknown"]


def outcome(read: object, payload: bytes) -> Envelope | None:
    try:
        envelope = parse_envelope(payload) if read == "plain" else read_envelope(payload)
    except ProtocolError:
        return None
    return envelope


@given(st.dictionaries(st.sampled_from(_MEMBERS), _ANYTHING, max_size=5), st.booleans())
@example({"ver": True}, True)
@example({"ver": 1.0}, True)
@example({"exp": True}, True)
@example({"dst": [True]}, True)
@example({"cmd": "\ud800"}, True)
@example({"now": NUMBER_LIMITS["now"]}, True)
def test_both_read_the_same(members: dict[str, object], with_the_rest: bool) -> None:
    value = ({"ver": 1, "uid": "a", "cmd": "b"} if with_the_rest else {}) | members
    payload = json.dumps(value).encode()
    assert outcome("plain", payload) == outcome("model", payload)


@given(st.binary(max_size=40))
def test_both_refuse_the_same_bytes(payload: bytes) -> None:
    assert outcome("plain", payload) == outcome("model", payload)


def test_a_full_one() -> None:
    assert read_envelope(FULL.encode()) == FULL
    assert EnvelopeModel.parse(FULL.encode()).try_ == FULL.tries


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ProtocolError, match="EINVAL invalid envelope: cmd: contains \\*"):
        read_envelope(b'{"ver":1,"uid":"a","cmd":"*"}')
    with pytest.raises(ProtocolError, match="invalid envelope: uid: Field required"):
        read_envelope(b'{"ver":1,"cmd":"a"}')


def test_the_client_is_imported_without_pydantic_and_asyncio() -> None:
    """A program that only publishes does not wait for what only calls need."""
    code = "import sys, sbusd.client; print('pydantic' in sys.modules, 'asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
