"""Frames between links: what is written is read, in any pieces; invalid ones are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_services.link.network import direct_frames
from sbus_services.link.network.direct_frames import MAX_FRAME_BYTES, MAX_HEAD_BYTES, FrameError, FrameKind, FrameReader


@given(st.lists(st.tuples(st.sampled_from(["a", "s.R.m.a.=FF"]), st.binary(max_size=20), st.binary(max_size=300)), max_size=8), st.data())
def test_messages_are_read_as_they_were_written(messages: list[tuple[str, bytes, bytes]], data: st.DataObject) -> None:
    stream = b"".join(direct_frames.message(*each) or b"" for each in messages)
    reader, found, begin = FrameReader(), [], 0
    while begin < len(stream):
        size = data.draw(st.integers(1, 200))
        found += list(reader.feed(stream[begin : begin + size]))
        begin += size
    assert [direct_frames.read_message(frame.content) for frame in found] == messages
    assert not reader.is_within_frame


def test_the_other_kinds_are_read_as_they_were_written() -> None:
    stream = (
        direct_frames.hello("R")
        + direct_frames.subscribe("a.>")
        + direct_frames.unsubscribe("a.>")
        + direct_frames.ping(7)
        + direct_frames.pong(1 << 63)
        + direct_frames.rejected("é" * 400)
    )
    hello, added, removed, ping, pong, rejected = FrameReader().feed(stream)
    direct_frames.read_hello(hello.content, "R")
    assert (added.kind, direct_frames.read_subject(added.content)) == (FrameKind.SUBSCRIBE, "a.>")
    assert (removed.kind, direct_frames.read_subject(removed.content)) == (FrameKind.UNSUBSCRIBE, "a.>")
    assert [direct_frames.read_number(each.content) for each in (ping, pong)] == [7, 1 << 63]
    assert (rejected.kind, len(rejected.content)) == (FrameKind.REJECTED, 300)


def test_messages_over_the_limits_are_not_written() -> None:
    overhead = 1 + 2 + 1 + 2
    assert direct_frames.message("a", b"", bytes(MAX_FRAME_BYTES - overhead)) is not None
    assert direct_frames.message("a", b"", bytes(MAX_FRAME_BYTES - overhead + 1)) is None
    assert direct_frames.message("a", bytes(MAX_HEAD_BYTES), b"") is not None
    assert direct_frames.message("a", bytes(MAX_HEAD_BYTES + 1), b"") is None


def test_the_longest_message_is_read() -> None:
    frame = direct_frames.message("a", b"", bytes(MAX_FRAME_BYTES - 6))
    assert frame is not None
    assert len(next(FrameReader().feed(frame)).content) == MAX_FRAME_BYTES - 1


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1, 0xFFFF_FFFF])
def test_a_length_that_cannot_be_is_refused_before_its_bytes_come(length: int) -> None:
    with pytest.raises(FrameError, match=f"a frame of {length} bytes"):
        list(FrameReader().feed(struct.pack("<I", length)))


def test_frames_before_an_invalid_one_are_read() -> None:
    frames = FrameReader().feed(direct_frames.ping(1) + struct.pack("<IB", 1, 0))
    assert next(frames).kind is FrameKind.PING
    with pytest.raises(FrameError, match="unknown kind 0"):
        next(frames)


@given(st.binary(max_size=40))
def test_any_content_is_read_or_refused(content: bytes) -> None:
    for read in (direct_frames.read_message, direct_frames.read_subject, direct_frames.read_number):
        try:
            read(content)
        except FrameError as error:
            assert str(error)  # noqa: PT017 - any other error fails the test
