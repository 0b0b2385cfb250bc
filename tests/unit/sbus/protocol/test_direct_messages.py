"""Direct messages: what is well-formed."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.direct_messages import direct_packet, parse_direct
from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.packets import MAX_PACKET_BYTES
from sbus.protocol.vouching import vouched_packet

PACKET = b"MSG a/b\0hi"
VOUCHED = vouched_packet(b"!/host/alpha/!/cred/1000/1000/19211", PACKET)


@pytest.mark.parametrize("connection", [1, 42, 2**32, 10**18 - 1])
@pytest.mark.parametrize("packet", [PACKET, VOUCHED, b"MSG \0"])
def test_recipient_and_content_arrive_as_they_were_sent(connection: int, packet: bytes) -> None:
    direct = direct_packet(connection, packet)
    assert direct == b"CMSG !/to/%d\0%b" % (connection, packet)
    assert parse_direct(direct) == (connection, packet)


@pytest.mark.parametrize("connection", [0, -1, 10**18])
def test_a_number_that_no_connection_has(connection: int) -> None:
    with pytest.raises(ProtocolError, match="number of the recipient") as caught:
        direct_packet(connection, PACKET)
    assert caught.value.code is ErrorCode.EINVAL


@pytest.mark.parametrize("number", [b"", b"0", b"01", b"+1", b" 1", b"1 ", b"1\n", b"1/", b"x", b"1_0", "١".encode(), b"1" * 19])
def test_a_malformed_number(number: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_direct(b"CMSG !/to/" + number + b"\0" + PACKET)
    assert caught.value.code is ErrorCode.EINVAL


@pytest.mark.parametrize(
    "packet",
    [b"", b"MSG", b"MSG a", b"msg a\0", b"SUB a\0", b"CMSG !/batch\0", direct_packet(1, PACKET), b"CMSG !/from/\0MSG a\0", VOUCHED[:-4]],
)
def test_only_a_message_can_be_sent_to_one_connection(packet: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        direct_packet(1, packet)
    assert caught.value.code is ErrorCode.EINVAL


def test_without_a_nul_or_the_right_head_there_is_no_message() -> None:
    for packet in (b"CMSG !/to/1", b"CMSG !/to/", b"MSG a\0", VOUCHED):
        with pytest.raises(ProtocolError):
            parse_direct(packet)


def test_what_is_too_long() -> None:
    origin = b"CMSG !/from/" + b"x" * 600 + b"/!/cred/1/2/3\0" + PACKET
    for packet in (b"MSG a\0" + bytes(MAX_PACKET_BYTES - 6), origin):
        with pytest.raises(ProtocolError) as caught:
            direct_packet(1, packet)
        assert caught.value.code is ErrorCode.EMSGSIZE


ALPHABET = st.sampled_from([b"1", b"0", b"9" * 18, b"\0", b"MSG a", b"CMSG !/from/x/!/cred/1/2/3", b"CMSG !/to/1", b"-", b"\xff"])


@given(st.binary() | st.lists(ALPHABET, max_size=12).map(b"".join))
def test_parsing_is_total_and_exact(rest: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        connection, packet = parse_direct(b"CMSG !/to/" + rest)
        assert direct_packet(connection, packet) == b"CMSG !/to/" + rest
