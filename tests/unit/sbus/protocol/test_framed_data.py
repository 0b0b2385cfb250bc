"""The form of the data of calls to the store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.errors import ProtocolError
from sbus.protocol.framed_data import MAX_FRAMES, framed_data, message_frame, parse_framed_data, split_message


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.lists(st.binary(max_size=300), max_size=20))
def test_data_are_read_as_they_were_written(head: dict[str, object], frames: list[bytes]) -> None:
    assert parse_framed_data(framed_data(head, frames)) == (head, frames)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[]", "JSON object"),
        (b"\xff", "JSON object"),
        (b"{}\0abc", "frame 0 is longer"),
        (b"{}\0\1\0\0\0a\2\0\0\0b", "frame 1 is longer"),
        (framed_data({}, [b""] * (MAX_FRAMES + 1)), "more than 256 frames"),
        (b"[" * 200_000, "JSON object"),
    ],
)
def test_malformed_data_are_errors(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        parse_framed_data(data)


def test_a_message_is_its_key_and_its_payload() -> None:
    assert split_message(message_frame(b"a/b", b"x\0y")) == (b"a/b", b"x\0y")
    assert parse_framed_data(b"") == ({}, [])
    with pytest.raises(ProtocolError, match="NUL"):
        split_message(b"key")
