"""Intersections and covered patterns, spelled out; tests/property/test_pattern_index.py tries all others."""

from __future__ import annotations

import pytest

from sbusd.protocol.overlap import covers, intersection, is_matchable


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


@pytest.mark.parametrize(
    ("allowed", "pattern", "expected"),
    [
        ("", "", True),
        ("", "a/*", True),
        ("", "!x", True),
        ("", "!/cred//1//", False),
        ("", "!/event/", False),
        ("a/", "a/", True),
        ("a/", "a/b/c*", True),
        ("a/", "a", False),
        ("a/", "", False),
        ("a/", "*/b", False),
        ("a/", "a*/b", False),
        ("a/*", "a/b", True),
        ("a/*", "a/b*", True),
        ("a/*", "a/", False),
        ("a/b*", "a/*", False),
        ("a/b*", "a/bc", True),
        ("*/x", "a/x", True),
        ("*/x", "*/x", True),
        ("!/cred//1//", "!/cred//1//x", True),
        ("!/cred//1//", "!/cred//2//x", False),
        ("!/cred//1//", "!/cred///x", False),
        ("!/cred//1//a/", "!/cred//1//", False),
        ("!/event/", "!/event/connect/*", True),
        ("!/event/", "!/conn/1/", False),
        ("!/", "!/cred//1//", False),
    ],
)
def test_a_pattern_covers_another(allowed: str, pattern: str, expected: bool) -> None:
    assert covers(allowed.encode(), pattern.encode()) == expected
