from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.limits import MAX_PACKET_BYTES
from sbusd.protocol.packets import (
    Control,
    Packet,
    Publish,
    Subscribe,
    Unsubscribe,
    control_packet,
    error_packet,
    parse_error,
    parse_packet,
    publish_packet,
    subscribe_packet,
    unsubscribe_packet,
)

FORMS: list[tuple[bytes, Packet]] = [
    (b"SUB a/*/c/", Subscribe(b"a/*/c/")),
    (b"SUB ", Subscribe(b"")),
    (b"SUB a\0ignored", Subscribe(b"a")),
    (b"SUB a\0", Subscribe(b"a")),
    (b"SUB \0", Subscribe(b"")),
    (b"SUB  a b ", Subscribe(b" a b ")),
    (b"SUB a\n", Subscribe(b"a\n")),
    (b"UNSUB a/*/c/", Unsubscribe(b"a/*/c/")),
    (b"UNSUB ", Unsubscribe(b"")),
    (b"UNSUB a\0ignored\0", Unsubscribe(b"a")),
    (b"MSG a/b\0hello", Publish(b"a/b", b"hello")),
    (b"MSG \0", Publish(b"", b"")),
    (b"MSG a\0", Publish(b"a", b"")),
    (b"MSG a b\0c", Publish(b"a b", b"c")),
    (b"MSG a\0\0b\0", Publish(b"a", b"\0b\0")),
    (b"MSG \xff\xfe\0\xff", Publish(b"\xff\xfe", b"\xff")),
    (b"CMSG !/cred/whoami", Control(b"!/cred/whoami", None)),
    (b"CMSG !/bus/ping\0token", Control(b"!/bus/ping", b"token")),
    (b"CMSG a\0", Control(b"a", b"")),
    (b"CMSG ", Control(b"", None)),
    (b"CMSG \0", Control(b"", b"")),
]

MALFORMED = [b"", b" ", b"\0", b"SUB", b"UNSUB", b"MSG", b"CMSG", b"SUB\0a", b"sub a", b"Msg a\0", b" SUB a", b"SUBa b"]
MALFORMED += [b"PUB a\0", b"MSG a", b"MSG ", b"MSG", b"MSG\0a\0", b"XMSG a\0", b"SUB\ta", b"GET / HTTP/1.1\r\n", b"\xff" * 40, b"  "]


@pytest.mark.parametrize(("data", "packet"), FORMS)
def test_every_form_is_parsed(data: bytes, packet: Packet) -> None:
    assert parse_packet(data) == packet


@pytest.mark.parametrize("data", MALFORMED)
def test_anything_else_is_malformed(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_packet(data)
    assert caught.value.code is ErrorCode.EPROTO
    assert "MSG" in caught.value.words  # says what was expected


def test_the_words_quote_a_strangers_bytes_printably_and_cut() -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_packet(b"\x1b[2J\n" + b"x" * 1_000 + b" a")
    assert caught.value.words.isprintable()
    assert r"\x1b[2J\n" in caught.value.words
    assert "…" in caught.value.words
    assert len(caught.value.words) < 200


def test_the_largest_packet_is_parsed_and_the_next_is_not() -> None:
    largest = b"MSG a\0".ljust(MAX_PACKET_BYTES, b"x")
    assert parse_packet(largest) == Publish(b"a", largest[6:])
    for longer in (largest + b"x", b"x" * (MAX_PACKET_BYTES + 1)):
        with pytest.raises(ProtocolError, match="EMSGSIZE packet too long: 409601 bytes, at most 409600 are allowed") as caught:
            parse_packet(longer)
        assert caught.value.code is ErrorCode.EMSGSIZE


def test_the_largest_packet_is_made_and_the_next_is_not() -> None:
    assert len(publish_packet(b"a", b"x" * (MAX_PACKET_BYTES - 6))) == MAX_PACKET_BYTES
    with pytest.raises(ProtocolError, match="EMSGSIZE packet too long: 409601 bytes"):
        publish_packet(b"a", b"x" * (MAX_PACKET_BYTES - 5))


def test_each_form_is_made() -> None:
    assert subscribe_packet(b"a/") == b"SUB a/"
    assert subscribe_packet(b"") == b"SUB "
    assert unsubscribe_packet(b"a/") == b"UNSUB a/"
    assert publish_packet(b"a") == b"MSG a\0"
    assert publish_packet(b"a", b"\0") == b"MSG a\0\0"
    assert control_packet(b"echo/on") == b"CMSG echo/on"
    assert control_packet(b"!/bus/ping", b"") == b"CMSG !/bus/ping\0"
    assert control_packet(b"!/bus/ping", b"x\0y") == b"CMSG !/bus/ping\0x\0y"


def test_no_packet_is_made_of_a_key_with_a_nul() -> None:
    """The receiver would take what is in front of the NUL for the whole key: a secret could go to a public one."""
    makers: list[Callable[[bytes], bytes]] = [subscribe_packet, unsubscribe_packet, publish_packet, control_packet]
    for make in makers:
        for text in (b"a\0b", b"\0", b"a\0"):
            with pytest.raises(ProtocolError, match="contains a NUL byte") as caught:
                make(text)
            assert caught.value.code is ErrorCode.EINVAL


@pytest.mark.parametrize("code", list(ErrorCode))
def test_an_error_is_told_and_understood(code: ErrorCode) -> None:
    told = error_packet(code, f"{code.value}: for a reason")
    packet = parse_packet(told)
    assert told.startswith(b"CMSG !/bus/error\0" + code.name.encode() + b" ")
    assert isinstance(packet, Control)
    assert packet.payload is not None
    assert parse_error(packet.payload) == (code, f"{code.value}: for a reason")


def test_an_error_of_a_later_version_is_understood_as_far_as_it_goes() -> None:
    assert parse_error(b"ENEW something else") == (None, "ENEW something else")
    assert parse_error(b"EPROTO") == (ErrorCode.EPROTO, "")
    assert parse_error(b"EPERM \xff") == (ErrorCode.EPERM, "\ufffd")
    assert parse_error(b"")[0] is None
    assert parse_error(b"disconnects x")[0] is None  # a name of the class, not of a code


def test_words_that_are_no_unicode_can_be_told() -> None:
    assert error_packet(ErrorCode.EINVAL, "bad \udcff") == b"CMSG !/bus/error\0EINVAL bad \\udcff"


@given(st.binary() | st.tuples(st.sampled_from([b"MSG ", b"SUB ", b"UNSUB ", b"CMSG "]), st.binary()).map(b"".join))
def test_parsing_is_total(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        packet = parse_packet(data)
        assert data.startswith({Publish: b"MSG ", Subscribe: b"SUB ", Unsubscribe: b"UNSUB ", Control: b"CMSG "}[type(packet)])


@given(st.binary())
def test_understanding_an_error_is_total(payload: bytes) -> None:
    code, words = parse_error(payload)
    assert code is None or payload.startswith(code.name.encode())
    assert isinstance(words, str)
