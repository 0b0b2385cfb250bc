"""The subjects of patterns and keys against `pattern_matches`."""

from __future__ import annotations

import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbus.protocol.keys import pattern_matches
from sbus_services.link import subjects
from tests.support.examples import examples

SEGMENTS = ["", "a", "ab", "b", "!", "*", "a*", "ab*", "a*b", "**", "cred", ".", ">", "=", "\xff", "abcdefgh", "abcdefgh*", "abcdefgx"]
PATTERNS = st.lists(st.sampled_from(SEGMENTS), max_size=5).map(lambda parts: "/".join(parts).encode("latin-1"))
KEYS = st.lists(st.sampled_from([*SEGMENTS, "1"]), min_size=1, max_size=7).map(lambda parts: "/".join(parts).encode("latin-1"))


def _network_matches(pattern: str, subject: str) -> bool:
    """Return whether a server gives *subject* to a subscription of *pattern*."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        return len(tokens) > len(wanted) and all(want in {"*", each} for want, each in zip(wanted, tokens, strict=False))
    return len(tokens) == len(wanted) and all(want in {"*", each} for want, each in zip(wanted, tokens, strict=True))


@settings(max_examples=examples(1_500))
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


@settings(max_examples=examples(300))
@given(
    st.binary(max_size=200).filter(lambda segment: b"/" not in segment), st.binary(max_size=200).filter(lambda segment: b"/" not in segment)
)
def test_different_segments_have_different_tokens(one: bytes, other: bytes) -> None:
    assert (subjects.token(one) == subjects.token(other)) is (one == other)
    assert len(subjects.token(one)) <= subjects.MAX_TOKEN
