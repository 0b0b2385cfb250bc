"""The index of patterns; the property test tries it against all patterns."""

from __future__ import annotations

from sbusd.link.patterns import PatternIndex


def test_an_empty_index_keeps_no_nodes() -> None:
    index = PatternIndex()
    for _ in range(2):
        index.add(b"a/b*/c/")
        index.add(b"a/b")
    assert (len(index), index.match(b"a/bc/c/d"), b"a/b" in index) == (2, [b"a/b*/c/"], True)
    for pattern in (b"a/b*/c/", b"a/b", b"a/b"):
        index.remove(pattern)
    assert (len(index), index._root.is_empty()) == (0, True)
