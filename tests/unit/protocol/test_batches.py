from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.protocol.batches import BATCH_HEAD, LENGTH_BYTES, is_batch, join_batch, parse_batch
from sbusd.protocol.errors import ErrorCode, ProtocolError
from sbusd.protocol.limits import MAX_PACKET_BYTES

PACKETS = st.binary(min_size=1).filter(lambda packet: not is_batch(packet))


def told(batch: bytes) -> tuple[list[bytes], str]:
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
def test_what_is_joined_is_taken_apart(packets: list[bytes]) -> None:
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
    assert told(batch) == ([], "malformed batch: it contains no packet")
    with pytest.raises(ProtocolError, match="EINVAL malformed batch: it contains no packet"):
        join_batch([])


def test_of_a_malformed_batch_the_packets_in_front_of_the_fault_come() -> None:
    good = join_batch([b"MSG a\0x", b"CMSG echo/off"])
    front = [b"MSG a\0x", b"CMSG echo/off"]
    assert told(good + b"\1\0\0") == (front, "malformed batch: 3 bytes left for a length of 4 bytes")
    assert told(good + struct.pack("<I", 6) + b"MSG a") == (front, "malformed batch: 5 bytes left for a packet of 6 bytes")
    assert told(good + b"\xff\xff\xff\xff") == (front, "malformed batch: 0 bytes left for a packet of 4294967295 bytes")
    assert told(good + bytes(4) + b"\1\0\0\0x") == (front, "malformed batch: it contains an empty packet")


@pytest.mark.parametrize("inner", [b"CMSG !/batch", BATCH_HEAD, join_batch([b"MSG a\0"])])
def test_there_is_no_batch_inside_a_batch(inner: bytes) -> None:
    batch = join_batch([b"MSG a\0x"]) + struct.pack("<I", len(inner)) + inner + struct.pack("<I", 5) + b"SUB a"
    assert told(batch) == ([b"MSG a\0x"], "malformed batch: it contains another batch")
    with pytest.raises(ProtocolError, match="EINVAL malformed batch: it contains another batch"):
        join_batch([b"MSG a\0x", inner])


def test_a_batch_is_joined_of_packets_alone_and_is_no_longer_than_a_packet() -> None:
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
            assert told(whole[:length])[0] == packets[: sum(end < length for end in ends)]
