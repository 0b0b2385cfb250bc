"""A queue that users share, compared with a plain list."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_programs.config.users import ChargedUsers, SubordinateIds, SubordinateRange
from sbus_services.link.shared_queue import Frame, Owners, SharedQueue, Spool

Items = list[tuple[int, int, int | None]]
"""The number, size and owner of each item."""


def _check_drop(items: Items, dropped: int | None, *, newest: bool) -> None:
    """Raise AssertionError unless an owner with the most bytes has lost the item *dropped*, and remove it."""
    held = Counter[int]()
    for _, size, owner in items:
        if owner is not None:
            held[owner] += size
    if not held:
        assert dropped is None
        return
    (lost,) = (item for item in items if item[0] == dropped)
    assert lost[2] is not None
    assert held[lost[2]] == max(held.values())
    assert lost == [item for item in items if item[2] == lost[2]][-1 if newest else 0]
    items.remove(lost)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from([1, 2, 3, None]), st.integers(1, 100)),
            st.sampled_from(["pop", "oldest", "newest"]),
        )
    )
)
def test_it_is_a_list_of_which_the_owner_with_the_most_loses_an_item(actions: list[tuple[int | None, int] | str]) -> None:
    queue, items = SharedQueue[int](), Items()
    for number, action in enumerate(actions):
        if isinstance(action, tuple):
            owner, size = action
            queue.add(number, size, owner)
            items.append((number, size, owner))
        elif action == "pop" and items:
            assert queue.pop() == items.pop(0)[0]
        elif action == "oldest":
            _check_drop(items, queue.drop_oldest(), newest=False)
        elif action == "newest":
            _check_drop(items, queue.drop_newest(), newest=True)
        assert (len(queue), queue.bytes) == (len(items), sum(size for _, size, _ in items))
    assert [queue.pop() for _ in range(len(queue))] == [number for number, _, _ in items]


@pytest.mark.parametrize(
    ("sender", "owner"),
    [
        (b"!/cred/100/1000/7", 1000),
        (b"!/cred/5/6/7/!/cred/100/1000/7", 1000),
        (b"!/cred/100/100003/7", 1000),
        (b"!/cred/0/0/1", 0),
        # A service, for a user of this host
        (b"!/cred/990/990/7/!/store/!/cred/100/1001/9", 1001),
        (b"!/cred/990/990/7/!/store/!/cred/100/100003/9", 1000),
        # A service, for others
        (b"!/cred/990/990/7/!/host/beta/!/cred/100/1001/9", 990),
        (b"!/cred/990/990/7/!/twin/1002/!/cred/100/1001/9", 990),
    ],
)
def test_the_user_behind_a_message_is_charged(sender: bytes, owner: int) -> None:
    charged = ChargedUsers(SubordinateIds([SubordinateRange(100_000, 10, 1000)]))
    assert Owners(charged.of).of(sender) == owner


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
