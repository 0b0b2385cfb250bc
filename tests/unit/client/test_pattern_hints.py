"""Which patterns are probably mistakes, and what is right instead."""

from __future__ import annotations

import itertools

import pytest

from sbusd.client.pattern_hints import hint
from sbusd.protocol.keys import pattern_matches


@pytest.mark.parametrize(
    ("pattern", "right"),
    [
        (b"a/#", "MQTT, and matches only itself here; write 'a/'"),
        (b"#", "write ''"),
        (b"a/+/b", "MQTT, and matches only itself here; write 'a/*/b'"),
        (b"+/b/+", "write '*/b/*'"),
        (b"a/>", "NATS, and matches only itself here; write 'a/'"),
        (b"a.b.>", "NATS, and matches only itself here; write 'a/b/'"),
        (b"a.*.c", "NATS, and can never match here; write 'a/*/c'"),
        (b"a.*", "NATS, and matches keys such as 'a.x' here; write 'a/*'"),
        (b"+/b*", "MQTT, and matches keys such as '+/bx' here; write '*/b*'"),
        (b">", "NATS, and matches only itself here; write ''"),
        (b"a/*x", "can never match: '*' matches the rest of its segment, so it must be the end of the segment"),
        (b"*a*", "can never match"),
    ],
)
def test_mistakes_are_named(pattern: bytes, right: str) -> None:
    assert (hint(pattern) or "").endswith(right) or right in (hint(pattern) or "")


@pytest.mark.parametrize(
    "pattern",
    [b"", b"a", b"a/", b"a/*", b"*/b", b"a*/b/", b"a.b", b"file.txt", b"a/b.c", b"a+b/c#", b"!/cred//1//x", b"*", b"**", b"\xff"],
)
def test_ordinary_patterns_have_no_hint(pattern: bytes) -> None:
    assert hint(pattern) is None


def test_a_long_pattern_is_cut() -> None:
    assert len(hint(b"a" * 5_000 + b"/#") or "") < 500


def test_a_pattern_never_matches_exactly_if_the_hint_says_so() -> None:
    """By trying: all patterns and keys of few letters."""
    letters = (b"a", b"*", b"/")
    words = [b"".join(each) for length in range(5) for each in itertools.product(letters, repeat=length)]
    for pattern in words:
        if b"*" in pattern:
            assert any(pattern_matches(pattern, key) for key in words) is (hint(pattern) is None), pattern
