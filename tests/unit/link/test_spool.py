"""The spool is bounded, users share it, and it says what it dropped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbusd.link.spool import Frame, Spool

FRAMES = st.lists(st.builds(lambda owner, size: Frame("s", b"h", bytes(size), 1 + size % 3, owner), st.integers(1, 4), st.integers(0, 900)))


def test_the_oldest_frames_are_dropped() -> None:
    frames = [Frame("s", b"h", bytes([number]) * 100, number, 1) for number in range(1, 6)]
    spool = Spool(3 * frames[0].cost)
    assert [spool.add(frame) for frame in frames] == [0, 0, 0, 1, 2]
    assert (len(spool), spool.bytes) == (3, 3 * frames[0].cost)
    assert spool.take() == frames[2:]
    assert (len(spool), spool.bytes, spool.take()) == (0, 0, [])


def test_a_spool_of_no_size_keeps_nothing() -> None:
    spool = Spool(0)
    assert (spool.add(Frame("s", b"h", b"", 7, 1)), len(spool)) == (7, 0)


@given(FRAMES, FRAMES, st.integers(0, 6_000))
def test_a_user_within_its_share_loses_nothing(before: list[Frame], frames: list[Frame], limit: int) -> None:
    """Nothing is left of what the spool had before it was emptied."""
    spool = Spool(limit)
    for frame in before:
        spool.add(frame)
    spool.take()
    dropped = sum(spool.add(frame) for frame in frames)
    size = spool.bytes
    kept = spool.take()
    assert size == sum(frame.cost for frame in kept) <= limit
    assert sum(frame.messages for frame in kept) + dropped == sum(frame.messages for frame in frames)
    for owner in range(1, 5):
        own = [frame for frame in frames if frame.owner == owner]
        left = [frame for frame in kept if frame.owner == owner]
        assert left == own[len(own) - len(left) :]
        if sum(frame.cost for frame in own) <= limit // 4:
            assert left == own
