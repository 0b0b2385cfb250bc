"""Subjects, intersections and the index of patterns against `pattern_matches`, key by key."""

from __future__ import annotations

import itertools
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbusd.link import subjects
from sbusd.link.patterns import PatternIndex
from sbusd.protocol.keys import pattern_matches
from sbusd.protocol.overlap import intersection

SEGMENTS = ["", "a", "ab", "b", "!", "*", "a*", "ab*", "a*b", "**", "cred", ".", ">", "=", "\xff", "abcdefgh", "abcdefgh*", "abcdefgx"]
PATTERNS = st.lists(st.sampled_from(SEGMENTS), max_size=5).map(lambda parts: "/".join(parts).encode("latin-1"))
KEYS = st.lists(st.sampled_from([*SEGMENTS, "1"]), min_size=1, max_size=7).map(lambda parts: "/".join(parts).encode("latin-1"))
RESERVED = st.tuples(st.sampled_from([b"!/cred/1/2/3/", b"!/cred/", b"!/conn/1/", b"!/", b"!/*/"]), PATTERNS).map(b"".join)
SHORT = [b"".join(key) for length in range(6) for key in itertools.product([b"a", b"b", b"/", b"!"], repeat=length)]
SMALL = st.lists(st.sampled_from([b"a", b"b", b"!", b"*", b"/"]), max_size=5).map(b"".join)


def _network_matches(pattern: str, subject: str) -> bool:
    """Return whether a server gives *subject* to a subscription of *pattern*."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        return len(tokens) > len(wanted) and all(want in {"*", each} for want, each in zip(wanted, tokens, strict=False))
    return len(tokens) == len(wanted) and all(want in {"*", each} for want, each in zip(wanted, tokens, strict=True))


@settings(deadline=None, max_examples=1_500)
@given(PATTERNS, KEYS, st.sampled_from([2, 3, 24]))
@example(b"a/", b"a/", 24)
@example(b"a/", b"a", 24)
@example(b"", b"", 24)
@example(b"a/b/", b"a/b/c", 2)
@example(b"a/b/c", b"a/b/c", 2)
def test_no_key_that_matches_a_pattern_is_missed_by_its_subject(pattern: bytes, key: bytes, most: int) -> None:
    wanted, subject = subjects.pattern_tokens(pattern, most), subjects.key_tokens(key, most)
    assert re.fullmatch(r"[A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]+)*", subject)
    if pattern_matches(pattern, key):
        assert _network_matches(wanted, subject)
    elif _network_matches(wanted, subject) and not key.startswith(b"!/"):
        # Only a star within a segment, and segments beyond those with tokens, may match more.
        segments = pattern.split(b"/")
        assert len(segments) > most or any(segment.strip(b"*") and b"*" in segment for segment in segments)


@settings(deadline=None, max_examples=300)
@given(
    st.binary(max_size=200).filter(lambda segment: b"/" not in segment), st.binary(max_size=200).filter(lambda segment: b"/" not in segment)
)
def test_different_segments_have_different_tokens(one: bytes, other: bytes) -> None:
    assert (subjects.token(one) == subjects.token(other)) is (one == other)
    assert len(subjects.token(one)) <= subjects.MAX_TOKEN


@settings(deadline=None, max_examples=300)
@given(SMALL | RESERVED, SMALL | RESERVED)
@example(b"", b"!/cred/1/2/3/")
@example(b"!*/a", b"*/a")
@example(b"a/*", b"a/")
@example(b"a//", b"a/*/")
def test_an_intersection_matches_what_both_patterns_match(one: bytes, other: bytes) -> None:
    both = intersection(one, other)
    assert both == intersection(other, one)
    filled = [
        pattern.replace(b"*", fill) + tail
        for pattern in (one, other, both or b"")
        for fill in (b"", b"a", b"b")
        for tail in (b"", b"a", b"/", b"a/")
    ]
    for key in itertools.chain(SHORT, filled):
        expected = pattern_matches(one, key) and pattern_matches(other, key)
        assert (both is not None and pattern_matches(both, key)) is expected, key


@settings(deadline=None, max_examples=500)
@given(st.lists(PATTERNS | RESERVED, max_size=12), st.sets(st.integers(0, 11)), st.lists(KEYS | RESERVED, min_size=1, max_size=10))
def test_the_index_finds_exactly_the_patterns_that_match(patterns: list[bytes], removed: set[int], keys: list[bytes]) -> None:
    index = PatternIndex()
    for pattern in patterns:
        index.add(pattern)
    for position in removed & set(range(len(patterns))):
        index.remove(patterns[position])
    kept = set(patterns) - {patterns[position] for position in removed if position < len(patterns)}
    assert set(index) == kept
    for key in [*keys, *(pattern.replace(b"*", b"") for pattern in patterns)]:
        assert index.match(key) == sorted(pattern for pattern in kept if pattern_matches(pattern, key))
