"""The spool is bounded, and says what it dropped."""

from __future__ import annotations

from sbusd.link.spool import Frame, Spool


def test_the_oldest_frames_are_dropped() -> None:
    frames = [Frame("s", b"h", bytes([number]) * 100, number) for number in range(1, 6)]
    spool = Spool(3 * frames[0].cost)
    assert [spool.add(frame) for frame in frames] == [0, 0, 0, 1, 2]
    assert (len(spool), spool.bytes) == (3, 3 * frames[0].cost)
    assert spool.take() == frames[2:]
    assert (len(spool), spool.bytes, spool.take()) == (0, 0, [])


def test_a_spool_of_no_size_keeps_nothing() -> None:
    spool = Spool(0)
    assert (spool.add(Frame("s", b"h", b"", 7)), len(spool)) == (7, 0)
