"""Intersections, spelled out; the property test of the link tries all others."""

from __future__ import annotations

import pytest

from sbusd.protocol.overlap import intersection, is_matchable


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
