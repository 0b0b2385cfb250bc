"""What is decided about patterns in one place each, against `pattern_matches`, key by key."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbus.protocol.keys import covers, intersection, pattern_matches
from sbus.protocol.pattern_index import PatternIndex
from tests.support.examples import examples

SEGMENTS = ["", "a", "ab", "b", "!", "*", "a*", "ab*", "a*b", "**", "cred", "\\", "\xff", "abcdefgh", "abcdefgh*", "abcdefgx"]
PATTERNS = st.lists(st.sampled_from(SEGMENTS), max_size=5).map(lambda parts: "/".join(parts).encode("latin-1"))
KEYS = st.lists(st.sampled_from([*SEGMENTS, "1"]), min_size=1, max_size=7).map(lambda parts: "/".join(parts).encode("latin-1"))
RESERVED = st.tuples(st.sampled_from([b"!/cred/1/2/3/", b"!/cred/", b"!/conn/1/", b"!/", b"!/*/"]), PATTERNS).map(b"".join)
SHORT = [b"".join(key) for length in range(6) for key in itertools.product([b"a", b"b", b"/", b"!"], repeat=length)]
SMALL = st.lists(st.sampled_from([b"a", b"b", b"!", b"*", b"/"]), max_size=5).map(b"".join)


@settings(max_examples=examples(300))
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


@settings(max_examples=examples(300))
@given(SMALL | RESERVED, SMALL | RESERVED)
@example(b"a*", b"a**")
@example(b"", b"!/cred/1/2/3/")
@example(b"!*/a", b"*/a")
@example(b"*/", b"a/")
@example(b"a*", b"aa*")
def test_a_pattern_covers_another_exactly_if_it_matches_all_its_keys(allowed: bytes, pattern: bytes) -> None:
    keys = [*SHORT, *(pattern.replace(b"*", fill) + tail for fill in (b"", b"a", b"b") for tail in (b"", b"a", b"/", b"a/"))]
    matched = [key for key in keys if pattern_matches(pattern, key)]
    assert covers(allowed, pattern) is (bool(matched) and all(pattern_matches(allowed, key) for key in matched))


@settings(max_examples=examples(500))
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
