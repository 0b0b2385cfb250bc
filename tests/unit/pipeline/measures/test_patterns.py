"""The set of patterns finds those that the reference says take a key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sbusd.archive.record.key_text import key_bytes, key_text
from sbusd.pipeline.measures.patterns import PatternSet
from sbusd.protocol.keys import KeySpace

_SEGMENTS = st.sampled_from([b"", b"a", b"ab", b"a*", b"*", b"**", b"a*b", b"!", b"cred", b"conn", b"7", b"\xff", b"\\", "é".encode()])
_KEYS = st.lists(_SEGMENTS, max_size=7).map(b"/".join).map(key_text)


@given(st.lists(_KEYS, max_size=12), _KEYS)
def test_it_finds_what_the_reference_finds(patterns: list[str], key: str) -> None:
    taking = [pattern for pattern in set(patterns) if KeySpace().matches(key_bytes(pattern), key_bytes(key))]
    assert sorted(PatternSet(set(patterns)).matching(key)) == sorted(taking)


def test_text_that_is_no_key_takes_nothing() -> None:
    assert PatternSet(["", "\\"]).matching("\\") == []
    assert PatternSet(["", "\\"]).matching("a") == [""]


def test_a_deep_key_is_no_deep_recursion() -> None:
    deep = "*/" * 50_000
    assert PatternSet([deep]).matching("a/" * 50_001) == [deep]
