"""Intersections, spelled out; the property test tries all others."""

from __future__ import annotations

import pytest

from sbusd.link.patterns import PatternIndex, intersection, is_matchable


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (b"", b"net/", b"net/"),
        (b"*/link/", b"net/", b"net/link/"),
        (b"a/*/c/", b"a/b/", b"a/b/c/"),
        (b"ab*/c", b"abx/", b"abx/c"),
        (b"a/*", b"a/", b"a/*"),
        (b"a", b"a/", None),
        (b"a*x", b"", None),
        (b"", b"!/cred//1//", None),
    ],
)
def test_two_patterns_have_this_intersection(one: bytes, other: bytes, both: bytes | None) -> None:
    assert intersection(one, other) == both


def test_a_pattern_with_bytes_after_a_star_matches_nothing() -> None:
    assert not is_matchable(b"a*b/c")
    assert is_matchable(b"a**/c")


def test_an_empty_index_keeps_no_nodes() -> None:
    index = PatternIndex()
    for _ in range(2):
        index.add(b"a/b*/c/")
        index.add(b"a/b")
    assert (len(index), index.match(b"a/bc/c/d"), b"a/b" in index) == (2, [b"a/b*/c/"], True)
    for pattern in (b"a/b*/c/", b"a/b", b"a/b"):
        index.remove(pattern)
    assert (len(index), index._root.is_empty()) == (0, True)
