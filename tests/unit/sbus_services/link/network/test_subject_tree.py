"""The subscriptions of one host: the tree matches exactly what the subjects match, within its limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbus_services.link.network.subject_tree import MAX_NODES, MAX_STEPS, MAX_SUBJECTS, MAX_TOKENS, SubjectTree, TooManySubjectsError
from sbus_services.link.permissions import covers

_TOKENS = st.lists(st.sampled_from("ab*"), min_size=1, max_size=4)
_PATTERNS = st.builds(lambda tokens, rest: ".".join([*tokens, *([">"] if rest else [])]), _TOKENS, st.booleans())
_SUBJECTS = st.lists(st.sampled_from("abc"), min_size=1, max_size=5).map(".".join)


@given(st.lists(st.tuples(st.booleans(), _PATTERNS), max_size=20), st.lists(_SUBJECTS, min_size=1, max_size=10))
def test_the_tree_matches_as_its_subjects_do(changes: list[tuple[bool, str]], subjects: list[str]) -> None:
    tree, model = SubjectTree(), set()
    for is_added, pattern in changes:
        if is_added:
            tree.add(pattern)
            model.add(pattern)
        else:
            tree.remove(pattern)
            model.discard(pattern)
    assert len(tree) == len(model)
    for subject in subjects:
        assert tree.matches(subject) is any(covers(pattern, subject) for pattern in model)


def test_nothing_remains_of_removed_subjects() -> None:
    tree = SubjectTree()
    patterns = [f"a.*.{number}.>" for number in range(100)] + ["a", "a.b", "a.>", ">"]
    for pattern in patterns:
        tree.add(pattern)
    for pattern in patterns:
        tree.remove(pattern)
    assert tree._nodes == 0
    assert tree._root.is_empty


def test_the_number_of_subjects_is_limited() -> None:
    tree = SubjectTree()
    for number in range(MAX_SUBJECTS):
        tree.add(f"a.{number}")
    tree.add("a.0")
    with pytest.raises(TooManySubjectsError, match=f"there are {MAX_SUBJECTS} subscriptions"):
        tree.add("a.b")
    tree.remove("a.0")
    tree.add("a.b")


def test_the_memory_of_long_subjects_is_limited() -> None:
    tree = SubjectTree()
    with pytest.raises(TooManySubjectsError, match="33 tokens"):
        tree.add(".".join("a" * (MAX_TOKENS + 1)))
    count = MAX_NODES // MAX_TOKENS
    for number in range(count):
        tree.add(".".join([str(number)] * MAX_TOKENS))
    with pytest.raises(TooManySubjectsError, match=f"there are {count} subscriptions; the maximum is .* or less if they are long"):
        tree.add(".".join(["more"] * MAX_TOKENS))
    assert tree._nodes <= MAX_NODES


def test_a_match_has_a_bounded_number_of_steps() -> None:
    """Many overlapping wildcards: rather one message too many than a long search."""
    tree = SubjectTree()
    depth = 12
    for number in range(1 << depth):
        tree.add(".".join("*" if number >> bit & 1 else "a" for bit in range(depth)) + ".end")
    assert 1 << depth > MAX_STEPS
    assert tree.matches("a." * depth + "other")
    assert not tree.matches("b." * depth + "other")
