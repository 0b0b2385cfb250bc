"""What may be given as key, pattern and payload."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.encoding import pattern_list, payload_bytes, publication, to_bytes
from sbus.errors import PayloadTooLarge, ProtocolError
from sbus.items import Message
from sbus.pattern_hints import PatternWarning
from sbus.protocol.packets import MAX_PACKET_BYTES


def test_text_is_utf8() -> None:
    assert publication("é", "ü") == b"MSG \xc3\xa9\0\xc3\xbc"
    assert publication(b"\xff", b"\0\xff") == b"MSG \xff\0\0\xff"


def test_a_surrogate_is_one_clear_line() -> None:
    with pytest.raises(ProtocolError, match="give bytes instead"):
        to_bytes("\ud800")
    with pytest.raises(ProtocolError, match="give bytes instead"):
        payload_bytes("\udcff")


def _may_come_out(key: bytes) -> bool:
    """Return whether a message can have this key: a private key has a form, which Hypothesis knows from the source, but not how it ends."""
    try:
        with warnings.catch_warnings(action="ignore", category=PatternWarning):
            pattern_list((key,))
    except ProtocolError:
        return not key.startswith(b"!/cred/")
    return True


@given(st.binary().map(lambda data: data.replace(b"\0", b"x")).filter(_may_come_out))
def test_a_key_that_came_out_goes_in_unchanged(key: bytes) -> None:
    message = Message(key, b"")
    with warnings.catch_warnings(action="ignore", category=PatternWarning):
        assert (to_bytes(message.key), pattern_list((message.key,))) == (key, [key])
    assert publication(message.key, "x") == publication(key, "x")


def test_a_nul_in_a_key_is_refused() -> None:
    with pytest.raises(ProtocolError, match="contains a NUL byte"):
        publication("a\0b", "")
    with pytest.raises(ProtocolError, match="contains a NUL byte"):
        pattern_list((b"a\0b",))


def test_the_largest_packet() -> None:
    room = MAX_PACKET_BYTES - len(b"MSG k\0")
    assert len(publication("k", b"x" * room)) == MAX_PACKET_BYTES
    with pytest.raises(PayloadTooLarge) as caught:
        publication("k", b"x" * (room + 1))
    assert (caught.value.size, caught.value.limit) == (MAX_PACKET_BYTES + 1, MAX_PACKET_BYTES)


def test_no_pattern_is_not_the_empty_pattern() -> None:
    assert pattern_list(("",)) == [b""]
    with pytest.raises(ValueError, match="at least one pattern"):
        pattern_list(())


@pytest.mark.parametrize("payload", [b"ab", "ab", bytearray(b"ab"), memoryview(b"xabx")[1:3]])
def test_a_payload_is_text_or_bytes_of_any_kind(payload: Any) -> None:
    assert publication("k", payload) == b"MSG k\0ab"
    assert publication("k" * 5_000, payload).endswith(b"k\0ab")


@pytest.mark.parametrize("payload", [5, None, {"a": 1}, [1], 1.5, object])
def test_another_payload_is_an_error_that_names_it(payload: Any) -> None:
    with pytest.raises(TypeError, match=f"^payload must be bytes, bytearray, memoryview or str, not {type(payload).__name__}"):
        publication("k", payload)
    with pytest.raises(TypeError, match=r"^data must be"):
        payload_bytes(payload, "data")
    assert ("json.dumps" in _error(payload)) is isinstance(payload, dict | list)


def _error(payload: Any) -> str:
    with pytest.raises(TypeError) as caught:
        publication("k", payload)
    return str(caught.value)


@pytest.mark.parametrize("key", [5, None, bytearray(b"a"), ["a"], ("a",)])
def test_another_key_is_an_error_that_names_it(key: Any) -> None:
    with pytest.raises(TypeError, match=f"^key must be str or bytes, not {type(key).__name__}$"):
        publication(key, "")


def test_patterns_can_be_in_lists() -> None:
    assert pattern_list((["a", b"b"], "c", ("d",))) == [b"a", b"b", b"c", b"d"]
    wrong: Any = 5
    for patterns in ((wrong,), (["a", wrong],)):
        with pytest.raises(TypeError, match=r"^pattern must be str or bytes, not int$"):
            pattern_list(patterns)
    with pytest.raises(ValueError, match="at least one pattern"):
        pattern_list(([],))


def test_a_pattern_of_another_protocol_is_a_warning() -> None:
    with pytest.warns(PatternWarning, match=re.escape("'a/#' looks like a pattern of MQTT, and matches only itself here; write 'a/'")):
        assert pattern_list(("a/#",)) == [b"a/#"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pattern_list(("a.>",), separator=b".")
