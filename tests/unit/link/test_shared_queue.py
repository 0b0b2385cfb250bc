"""A queue that users share, compared with a plain list."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sbusd.link.shared_queue import SharedQueue

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
