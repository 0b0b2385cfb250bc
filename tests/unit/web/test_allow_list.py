"""An allowed pattern covers exactly the patterns that match only its keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.protocol.errors import ErrorCode
from sbusd.protocol.keys import KeySpace
from sbusd.web.allow_list import EVERY_ORDINARY_KEY, AllowList, NotAllowedError, covers

KEYS = KeySpace()

_SEGMENTS = st.sampled_from(["", "a", "ab", "b", "*", "a*", "ab*", "**", "a*b", "!", "cred", "conn", "event", "1", "1*"])
_KEY_SEGMENTS = st.sampled_from(["", "a", "ab", "abc", "b", "*", "!", "cred", "conn", "event", "1", "12"])
PATTERNS = st.lists(_SEGMENTS, min_size=1, max_size=7).map(lambda parts: "/".join(parts).encode())
ROUTING_KEYS = st.lists(_KEY_SEGMENTS, min_size=1, max_size=7).map(lambda parts: "/".join(parts).encode())


@given(PATTERNS, PATTERNS, ROUTING_KEYS)
def test_a_covered_pattern_matches_no_other_key(allowed: bytes, pattern: bytes, key: bytes) -> None:
    if covers(allowed, pattern) and KEYS.matches(pattern, key):
        assert KEYS.matches(allowed, key)


@given(PATTERNS, ROUTING_KEYS)
def test_a_key_that_is_matched_is_covered(allowed: bytes, key: bytes) -> None:
    """A pattern without wildcards matches only the key that it is; the empty pattern, and one that ends with a separator, match more."""
    if key and b"*" not in key and not key.endswith(b"/") and KEYS.matches(allowed, key):
        assert covers(allowed, key)


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
def test_examples(allowed: str, pattern: str, expected: bool) -> None:
    assert covers(allowed.encode(), pattern.encode()) == expected


def test_the_lists_are_separate_and_say_which_option_helps() -> None:
    made = AllowList.of(["net/"], ["lab/", "x"])
    made.check_pattern(b"net/link/*")
    made.check_key(b"lab/1")
    made.check_key(b"x")
    with pytest.raises(NotAllowedError, match="--allow for it") as refused:
        made.check_pattern(b"lab/")
    assert refused.value.code is ErrorCode.EPERM
    with pytest.raises(NotAllowedError, match="--allow-publish"):
        made.check_key(b"net/x")


def test_an_empty_list_allows_nothing_and_the_default_nothing_reserved() -> None:
    with pytest.raises(NotAllowedError):
        AllowList.of([], []).check_pattern(b"a")
    default = AllowList.of([EVERY_ORDINARY_KEY], [EVERY_ORDINARY_KEY])
    for key in (b"!/cred//1//x", b"!/conn/1/x", b"!/event/connect/1"):
        with pytest.raises(NotAllowedError):
            default.check_key(key)
        with pytest.raises(NotAllowedError):
            default.check_pattern(key)


@pytest.mark.parametrize("pattern", ["a*b", "a/*b/c", "!/cred/", "!/*/x", "!/cred/*/1/1/x"])
def test_a_pattern_that_matches_no_key_is_a_mistake(pattern: str) -> None:
    with pytest.raises(ValueError, match="matches no key"):
        AllowList.of([pattern], [])
    with pytest.raises(ValueError, match="matches no key"):
        AllowList.of([], [pattern])
