"""The trie of patterns, compared with the reference for one pattern and one key, and how long a search in it can take."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbusd.archive.record.key_text import key_bytes, key_text
from sbusd.pipeline.partials.pattern_trie import MAX_BRANCHES, PatternTrie, _visited, searchable
from sbusd.protocol.keys import KeySpace

_SEGMENTS = st.sampled_from([b"", b"a", b"ab", b"a*", b"*", b"**", b"a*b", b"!", b"cred", b"conn", b"7", b"\xff", b"\\", "é".encode()])
_KEYS = st.lists(_SEGMENTS, max_size=7).map(b"/".join).map(key_text)


@given(st.lists(_KEYS, max_size=12), _KEYS)
def test_it_matches_the_reference(patterns: list[str], key: str) -> None:
    taking = [pattern for pattern in set(patterns) if KeySpace().matches(key_bytes(pattern), key_bytes(key))]
    assert sorted(PatternTrie(set(patterns)).matching(key)) == sorted(taking)


def test_a_text_that_is_not_a_key_matches_nothing() -> None:
    assert PatternTrie(["", "\\"]).matching("\\") == []
    assert PatternTrie(["", "\\"]).matching("a") == [""]


def test_a_deep_key_does_not_recurse_deeply() -> None:
    deep = "*/" * 50_000
    assert PatternTrie([deep]).matching("a/" * 50_001) == [deep]


def _branches(patterns: list[str], key: str) -> int:
    """Return the greatest number of nodes in the same depth that the search for *key* visits."""
    depths = Counter(depth for _, depth in _visited(PatternTrie(patterns)._root, key_bytes(key).split(b"/")))
    return max(depths.values())


_LETTERS = st.sampled_from(["a", "aa", "ab", "b", "a*", "aa*", "*", "b*", "ab*"])


@given(st.lists(st.lists(_LETTERS, min_size=1, max_size=3).map("/".join), max_size=12, unique=True))
def test_no_search_has_more_branches_than_the_bound(patterns: list[str]) -> None:
    texts = ["a", "aa", "aaa", "ab", "aab", "abb", "b", "bb", "c"]
    keys = ["/".join(path) for first in texts for second in texts for path in ((first,), (first, second))]
    keys += [f"{first}/{second}/{third}" for first in texts for second in texts for third in texts]
    most, found = PatternTrie(patterns).most_branches(), max(_branches(patterns, key) for key in keys)
    assert most >= found
    if not any("/" in pattern for pattern in patterns):
        assert most == found


def _products(count: int) -> list[str]:
    """Return the square of *count* patterns that all match ``aaa…/aaa…``."""
    return [f"{'a' * first}*/{'a' * second}*" for first in range(count) for second in range(count)]


def test_patterns_that_multiply_are_bounded() -> None:
    key = "a" * 100 + "/" + "a" * 100
    slow = _products(100)
    assert _branches(slow, key) == 10_000
    used = searchable([*slow, "a/b", "a/"])
    assert MAX_BRANCHES // 2 <= len(used) - 2 == _branches(list(used), key) <= MAX_BRANCHES
    assert {"a/b", "a/", *slow[:128]} <= used


@pytest.mark.parametrize(
    "patterns",
    [
        [f"host/*/load/{number}" for number in range(5_000)] + [f"*/{number}/*/x" for number in range(5_000)],
        [f"{number:05}*" for number in range(10_000)],
        ["*/" * 2_000, "a/" * 2_000, *(f"host/*/load{number}" for number in range(100))],
        [f"{'a' * length}*" for length in range(256)],
    ],
)
def test_ordinary_patterns_are_all_used(patterns: list[str]) -> None:
    assert searchable(patterns) == set(patterns)


def test_a_user_with_many_stars_in_one_segment_is_searched_by_the_segment() -> None:
    patterns = [f"{number:05}*" for number in range(10_000)] + ["0*", "01*"]
    assert sorted(PatternTrie(patterns).matching("01234x")) == ["0*", "01*", "01234*"]


def test_long_patterns_are_measured_once() -> None:
    """With all the beginnings of each, this would take a minute."""
    long = [f"{number:04}{'a' * 4_000}*" for number in range(3_000)] + ["a" * length + "*" for length in range(1, 3_000)]
    assert len(searchable(long)) >= MAX_BRANCHES // 2


def test_deep_patterns_are_measured_without_recursion() -> None:
    deep = "a/" * 50_000
    assert PatternTrie([deep]).most_branches() == 1
    assert searchable([deep, "a*"]) == {deep, "a*"}
