"""The compiled scanner of runs refuses what is outside of its batch; sbus_services.link.message_runs tests what it finds."""

from __future__ import annotations

import pytest

from sbus.protocol.packet_runs import measure_run, replace_heads

BODY = b"\7\0\0\0MSG a\0x" + b"\6\0\0\0MSG a\0"


def test_a_run_is_measured_and_gets_another_head() -> None:
    assert measure_run(BODY, 0) == (21, 2, 6, 7)
    assert replace_heads(BODY, 0, 2, 6, b"MSG other\0", 100) == (b"\x0b\0\0\0MSG other\0x\x0a\0\0\0MSG other\0", 2, 21)
    assert replace_heads(BODY, 0, 2, 6, b"MSG other\0", 28) == (b"\x0b\0\0\0MSG other\0x", 1, 11)
    assert replace_heads(BODY, 0, 2, 6, b"MSG other\0", 14) == (b"", 0, 0)


@pytest.mark.parametrize("place", [-1, 22, 1 << 40])
def test_a_place_outside_is_an_error(place: int) -> None:
    with pytest.raises(ValueError, match="invalid place"):
        measure_run(BODY, place)
    with pytest.raises(ValueError, match="invalid place"):
        replace_heads(BODY, place, 1, 0, b"", 100)


@pytest.mark.parametrize(("place", "count", "head"), [(0, 3, 6), (21, 1, 0), (0, 1, 8), (0, 2, 7), (1, 1, 0)])
def test_packets_outside_are_an_error(place: int, count: int, head: int) -> None:
    with pytest.raises(ValueError, match="invalid run"):
        replace_heads(BODY, place, count, head, b"", 100)


def test_a_negative_size_is_an_error() -> None:
    with pytest.raises(ValueError, match="invalid place"):
        replace_heads(BODY, 0, 1, -1, b"", 100)
