"""Messages in the name of others, and reports of losses: what is well-formed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.credentials import parse_sender
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus.protocol.vouching import (
    MAX_LOST_COUNT,
    MAX_LOST_PATTERNS,
    MAX_ORIGIN_BYTES,
    loss_payload,
    parse_loss,
    parse_vouched,
    vouched_packet,
)

ORIGIN = b"!/host/alpha/!/cred/1000/1000/19211"
PACKET = b"MSG a/b\0hi"


@pytest.mark.parametrize(
    "origin",
    [
        ORIGIN,
        b"!/!/cred/0/0/0",
        b"x/!/cred/0000000001/4294967295/9999999999",
        b"!/host/beta/!/cred/9/9/9/!/host/alpha/!/cred/1/2/3",
        b"a!/cred/1/2/3/!/cred/1/2/3",
        b"~" * (MAX_ORIGIN_BYTES - 14) + b"/!/cred/1/2/3",
    ],
)
def test_an_origin_arrives_as_it_was_sent(origin: bytes) -> None:
    packet = vouched_packet(origin, PACKET)
    assert packet == b"CMSG !/from/" + origin + b"\0" + PACKET
    assert parse_vouched(packet) == (origin, PACKET)
    assert parse_sender(b"!/from/7/!/cred/9/990/55/" + origin).origin_bytes == origin


@pytest.mark.parametrize(
    "origin",
    [
        *(b"", b"!/cred/1/2/3", b"/!/cred/1/2/3"[1:], b"!/cred/1/2/3/!/cred/1/2/3", b"!/cred/x/!/cred/1/2/3", b"x", b"x/!/cred/1/2"),
        *(b"x/!/cred/1/2/", b"x/!/cred/1/2/3/", b"x/!/cred/1/2/3/4", b"x!/cred/1/2/3", b"x/!/cred//2/3", b"x/!/cred/1/2/12345678901"),
        *(
            b"x/!/cred/1/2/3\n",
            b"x y/!/cred/1/2/3",
            b'x"/!/cred/1/2/3',
            b"x\\/!/cred/1/2/3",
            b"\xc3\xa4/!/cred/1/2/3",
            b"\x7f/!/cred/1/2/3",
        ),
    ],
)
def test_a_malformed_origin(origin: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        vouched_packet(origin, PACKET)
    assert caught.value.code is ErrorCode.EINVAL


@pytest.mark.parametrize("packet", [b"", b"MSG a", b"MSG", b"SUB a\0", b"CMSG !/batch\0", vouched_packet(ORIGIN, PACKET), b"msg a\0"])
def test_only_a_message_can_be_vouched_for(packet: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        vouched_packet(ORIGIN, packet)
    assert caught.value.code is ErrorCode.EINVAL


def test_without_a_nul_there_is_no_message() -> None:
    for packet in (b"CMSG !/from/" + ORIGIN, b"CMSG !/from/", b"MSG a\0"):
        with pytest.raises(ProtocolError):
            parse_vouched(packet)


def test_what_is_too_long() -> None:
    for origin, packet in ((b"x" * MAX_ORIGIN_BYTES + b"/!/cred/1/2/3", PACKET), (ORIGIN, b"MSG a\0" + bytes(MAX_PACKET_BYTES - 20))):
        with pytest.raises(ProtocolError) as caught:
            vouched_packet(origin, packet)
        assert caught.value.code is ErrorCode.EMSGSIZE


ALPHABET = st.sampled_from([b"!/cred/", b"/!/cred/1/2/3", b"/", b"1", b"x", b"!", b'"', b"\\", b"\0", b"MSG a", b"\xff", b" "])


@given(st.binary() | st.lists(ALPHABET, max_size=12).map(b"".join))
def test_parsing_is_total_and_exact(rest: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        origin, packet = parse_vouched(b"CMSG !/from/" + rest)
        assert vouched_packet(origin, packet) == b"CMSG !/from/" + rest
        # However the origin looks, the credentials of the publisher are its own.
        peer = parse_sender(b"!/from/7/!/cred/9/990/55/" + origin)
        assert (peer.origin_bytes, peer.uid) == (origin, -1)
        assert peer.voucher == parse_sender(b"!/from/7/!/cred/9/990/55")


def test_a_loss() -> None:
    assert loss_payload(3, [b"a/*", b""]) == b"3\0a/*\0"
    assert parse_loss(b"3\0a/*\0") == (3, [b"a/*", b""])
    most = [b"p"] * MAX_LOST_PATTERNS
    assert parse_loss(loss_payload(MAX_LOST_COUNT, most)) == (MAX_LOST_COUNT, most)


@pytest.mark.parametrize(
    "payload", [b"", b"3", b"\0a", b"-1\0a", b"+1\0a", b"1 \0a", b"x\0a", b"1" + b"0" * 15 + b"\0a", b"1" + b"\0a" * 65]
)
def test_a_malformed_loss(payload: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_loss(payload)
    assert caught.value.code is ErrorCode.EINVAL


@pytest.mark.parametrize(("count", "patterns"), [(1, []), (-1, [b"a"]), (MAX_LOST_COUNT + 1, [b"a"]), (1, [b"a\0b"]), (1, [b"a"] * 65)])
def test_a_loss_that_cannot_be_reported(count: int, patterns: list[bytes]) -> None:
    with pytest.raises(ProtocolError) as caught:
        loss_payload(count, patterns)
    assert caught.value.code is ErrorCode.EINVAL
