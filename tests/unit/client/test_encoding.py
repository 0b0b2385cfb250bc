"""What may be given as key, pattern and payload."""

from __future__ import annotations

import pytest

from sbusd.client.encoding import pattern_list, publication, to_bytes
from sbusd.client.errors import PayloadTooLarge, ProtocolError
from sbusd.protocol.packets import MAX_PACKET_BYTES


def test_text_is_utf8() -> None:
    assert publication("é", "ü") == b"MSG \xc3\xa9\0\xc3\xbc"
    assert publication(b"\xff", b"\0\xff") == b"MSG \xff\0\0\xff"


def test_a_surrogate_is_one_clear_line() -> None:
    with pytest.raises(ProtocolError, match="give bytes instead"):
        to_bytes("\udcff")


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
