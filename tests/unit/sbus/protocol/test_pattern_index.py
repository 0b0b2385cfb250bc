"""The index of patterns, its nodes and the bound of a search; tests/property/test_pattern_index.py compares it with the reference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbus.protocol.pattern_index import PatternIndex
from tests.support.patterns import branches


def test_an_empty_index_keeps_no_nodes() -> None:
    index = PatternIndex()
    for _ in range(2):
        index.add(b"a/b*/c/")
        index.add(b"a/b")
    assert (len(index), index.match(b"a/bc/c/d"), b"a/b" in index) == (2, [b"a/b*/c/"], True)
    for pattern in (b"a/b*/c/", b"a/b", b"a/b"):
        index.remove(pattern)
    assert (len(index), index._root.is_empty()) == (0, True)


def test_a_deep_key_does_not_recurse_deeply() -> None:
    deep = b"*/" * 50_000
    assert PatternIndex([deep]).match(b"a/" * 50_001) == [deep]


def test_many_stars_in_one_segment_are_searched_by_the_segment() -> None:
    index = PatternIndex([b"%05d*" % number for number in range(10_000)] + [b"0*", b"01*"])
    assert index.match(b"01234x") == [b"0*", b"01*", b"01234*"]
    assert sorted(index._root.starred) == [2, 3, 6]


_LETTERS = st.sampled_from([b"a", b"aa", b"ab", b"b", b"a*", b"aa*", b"*", b"b*", b"ab*"])


@given(st.lists(st.lists(_LETTERS, min_size=1, max_size=3).map(b"/".join), max_size=12, unique=True))
def test_no_search_has_more_branches_than_the_bound(patterns: list[bytes]) -> None:
    texts = [b"a", b"aa", b"aaa", b"ab", b"aab", b"abb", b"b", b"bb", b"c"]
    keys = [b"/".join(path) for first in texts for second in texts for path in ((first,), (first, second))]
    keys += [b"%b/%b/%b" % (first, second, third) for first in texts for second in texts for third in texts]
    index = PatternIndex(patterns)
    most, found = index.most_branches(), max(branches(index, key) for key in keys)
    assert most >= found
    if not any(b"/" in pattern for pattern in patterns):
        assert most == found


def test_deep_patterns_are_measured_without_recursion() -> None:
    assert PatternIndex([b"a/" * 50_000]).most_branches() == 1
