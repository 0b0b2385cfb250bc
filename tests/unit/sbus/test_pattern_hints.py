"""Which patterns are probably mistakes, and what is right instead."""

from __future__ import annotations

import itertools
import json

import pytest

from sbus.pattern_hints import hint
from sbus.protocol.keys import pattern_matches
from tools.stage import ROOT

CASES: dict[str, str | None] = json.loads((ROOT / "clients" / "node" / "test" / "pattern_hints.json").read_text())
"""The hints of some patterns: the tests of the Node client read the same file."""


@pytest.mark.parametrize("pattern", CASES)
def test_mistakes_are_named(pattern: str) -> None:
    assert hint(pattern.encode()) == CASES[pattern]


def test_a_pattern_that_is_not_text_has_no_hint() -> None:
    assert hint(b"\xff") is None


def test_a_long_pattern_is_cut() -> None:
    assert len(hint(b"a" * 5_000 + b"/#") or "") < 500


def test_a_pattern_never_matches_exactly_if_the_hint_says_so() -> None:
    """By trying: all patterns and keys of few letters."""
    letters = (b"a", b"*", b"/")
    words = [b"".join(each) for length in range(5) for each in itertools.product(letters, repeat=length)]
    for pattern in words:
        if b"*" in pattern:
            assert any(pattern_matches(pattern, key) for key in words) is (hint(pattern) is None), pattern
