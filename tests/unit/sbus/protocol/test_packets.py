from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.errors import ErrorCode, ProtocolError
from sbus.protocol.keys import MAX_KEY_BYTES
from sbus.protocol.packets import (
    BATCH_HEAD,
    LENGTH_BYTES,
    MAX_BATCH_BYTES,
    MAX_PACKET_BYTES,
    Control,
    Packet,
    Publish,
    Subscribe,
    Unsubscribe,
    control_packet,
    error_packet,
    is_batch,
    join_batch,
    parse_batch,
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


def test_the_words_quote_unknown_bytes_printably_and_cut() -> None:
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
def test_an_error_is_encoded_and_parsed(code: ErrorCode) -> None:
    reported = error_packet(code, f"{code.value}: for a reason")
    packet = parse_packet(reported)
    assert reported.startswith(b"CMSG !/bus/error\0" + code.name.encode() + b" ")
    assert isinstance(packet, Control)
    assert packet.payload is not None
    assert parse_error(packet.payload) == (code, f"{code.value}: for a reason")


def test_an_error_of_a_later_version_is_understood_as_far_as_it_goes() -> None:
    assert parse_error(b"ENEW something else") == (None, "ENEW something else")
    assert parse_error(b"EPROTO") == (ErrorCode.EPROTO, "")
    assert parse_error(b"EPERM \xff") == (ErrorCode.EPERM, "\ufffd")
    assert parse_error(b"")[0] is None
    assert parse_error(b"disconnects x")[0] is None  # a name of the class, not of a code


def test_an_error_text_that_is_not_unicode_can_be_encoded() -> None:
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


PACKETS = st.binary(min_size=1).filter(lambda packet: not is_batch(packet))


def reported(batch: bytes) -> tuple[list[bytes], str]:
    """Return what is in a malformed batch in front of the fault, and what the fault is."""
    found: list[bytes] = []
    with pytest.raises(ProtocolError) as raised:
        found.extend(parse_batch(batch))
    assert raised.value.code is ErrorCode.EINVAL
    return found, raised.value.words


def test_the_bytes_are_those_of_the_protocol() -> None:
    assert join_batch([b"MSG a\0x", b"SUB b"]) == b"CMSG !/batch\0\7\0\0\0MSG a\0x\5\0\0\0SUB b"
    assert BATCH_HEAD == b"CMSG !/batch\0"
    assert LENGTH_BYTES == 4


@given(st.lists(PACKETS, min_size=1))
def test_joined_packets_are_split_again(packets: list[bytes]) -> None:
    batch = join_batch(packets)
    assert is_batch(batch)
    assert list(parse_batch(batch)) == packets
    assert len(batch) == len(BATCH_HEAD) + sum(LENGTH_BYTES + len(packet) for packet in packets)


def test_a_batch_is_known_by_its_key() -> None:
    assert is_batch(b"CMSG !/batch\0")
    assert is_batch(b"CMSG !/batch")
    assert not is_batch(b"CMSG !/batches\0")
    assert not is_batch(b"MSG !/batch\0")
    assert not is_batch(b"CMSG batch/on")


@pytest.mark.parametrize("batch", [b"CMSG !/batch", BATCH_HEAD])
def test_a_batch_of_nothing_is_a_fault(batch: bytes) -> None:
    assert reported(batch) == ([], "malformed batch: it contains no packet")
    with pytest.raises(ProtocolError, match="EINVAL malformed batch: it contains no packet"):
        join_batch([])


def test_of_a_malformed_batch_the_packets_in_front_of_the_fault_come() -> None:
    good = join_batch([b"MSG a\0x", b"CMSG echo/off"])
    front = [b"MSG a\0x", b"CMSG echo/off"]
    assert reported(good + b"\1\0\0") == (front, "malformed batch: 3 bytes left for a length of 4 bytes")
    assert reported(good + struct.pack("<I", 6) + b"MSG a") == (front, "malformed batch: 5 bytes left for a packet of 6 bytes")
    assert reported(good + b"\xff\xff\xff\xff") == (front, "malformed batch: 0 bytes left for a packet of 4294967295 bytes")
    assert reported(good + bytes(4) + b"\1\0\0\0x") == (front, "malformed batch: it contains an empty packet")


@pytest.mark.parametrize("inner", [b"CMSG !/batch", BATCH_HEAD, join_batch([b"MSG a\0"])])
def test_a_nested_batch_is_rejected(inner: bytes) -> None:
    batch = join_batch([b"MSG a\0x"]) + struct.pack("<I", len(inner)) + inner + struct.pack("<I", 5) + b"SUB a"
    assert reported(batch) == ([b"MSG a\0x"], "malformed batch: it contains another batch")
    with pytest.raises(ProtocolError, match="EINVAL malformed batch: it contains another batch"):
        join_batch([b"MSG a\0x", inner])


def test_a_batch_contains_only_packets_and_is_at_most_as_long_as_a_packet() -> None:
    with pytest.raises(ProtocolError, match="EINVAL malformed batch: it contains an empty packet"):
        join_batch([b"MSG a\0x", b""])
    longest = MAX_PACKET_BYTES - len(BATCH_HEAD) - LENGTH_BYTES
    assert len(join_batch([bytes(longest)])) == MAX_PACKET_BYTES
    with pytest.raises(ProtocolError, match="EMSGSIZE batch too long: 409601 bytes, at most 409600 are allowed"):
        join_batch([bytes(longest + 1)])


def test_a_batch_that_is_cut_anywhere_gives_whole_packets_alone() -> None:
    packets = [b"MSG a\0x", b"SUB b", b"CMSG !/bus/ping\0token"]
    whole = join_batch(packets)
    ends = [len(join_batch(packets[: count + 1])) for count in range(len(packets))]
    for length in range(len(BATCH_HEAD), len(whole)):
        if length in ends:
            assert list(parse_batch(whole[:length])) == packets[: ends.index(length) + 1]
        else:
            assert reported(whole[:length])[0] == packets[: sum(end < length for end in ends)]


def test_the_sizes_are_those_of_the_protocol() -> None:
    """409,600 bytes is the original's; a key is as long as a path can be, with its NUL."""
    assert MAX_PACKET_BYTES == 409_600
    assert MAX_KEY_BYTES == 4_096
    assert MAX_BATCH_BYTES == 65_536
